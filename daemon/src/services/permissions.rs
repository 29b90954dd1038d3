//! Which role each call needs. What depends on the message besides, such as whose request it is about, is checked where
//! the message is read.

use crate::{
    caller::{Caller, User},
    failure::Failure,
    role::Role,
};

/// What also those may call who come from elsewhere and don't say who they are: balancers and probes ask. A stream would keep its
/// place for as long as they like.
const OPEN: &str = "/grpc.health.v1.Health/Check";

/// Every call of the schema, and the least role that may make it. Health and reflection are for all whom something tells of.
const NEEDED: [(&str, &str, Role); 37] = [
    ("EmbeddingService", "Embed", Role::Generate),
    ("GenerationService", "Generate", Role::Generate),
    ("GenerationService", "GenerateWithState", Role::Generate),
    // Of others only for administrators.
    ("GenerationService", "WatchGeneration", Role::Generate),
    ("GenerationService", "Score", Role::Generate),
    ("MemoryService", "ImportSources", Role::Operate),
    // Of collections that the role may read, here and in what follows.
    ("MemoryService", "ListCollections", Role::Generate),
    ("MemoryService", "ListSources", Role::Generate),
    ("MemoryService", "ReadSource", Role::Generate),
    ("MemoryService", "SearchMemory", Role::Generate),
    ("MemoryService", "ExportMemory", Role::Generate),
    ("MemoryService", "RemoveSources", Role::Operate),
    ("MemoryService", "WipeMemory", Role::Admin),
    ("ModelService", "ListModels", Role::Observe),
    // Paths below the named folders alone, here and in all that follows.
    ("ModelService", "InspectModel", Role::Observe),
    // With the daemon's own token only for administrators.
    ("ModelService", "PullModel", Role::Operate),
    ("ModelService", "LoadModel", Role::Operate),
    ("ModelService", "UnloadModel", Role::Operate),
    ("ModelService", "RemoveModel", Role::Admin),
    ("OperationService", "ListOperations", Role::Observe),
    ("OperationService", "WatchOperation", Role::Observe),
    // Of others only for operators.
    ("OperationService", "CancelOperation", Role::Generate),
    ("OptimizerService", "Plan", Role::Observe),
    ("OptimizerService", "Apply", Role::Operate),
    ("OptimizerService", "Restore", Role::Operate),
    // It changes the weights on its way, and nobody shares its passes.
    ("OptimizerService", "MeasureFidelity", Role::Operate),
    ("OptimizerService", "ListFidelity", Role::Observe),
    ("OptimizerService", "Compress", Role::Operate),
    ("OptimizerService", "Decompress", Role::Operate),
    ("OptimizerService", "Verify", Role::Operate),
    ("OptimizerService", "Prune", Role::Operate),
    ("OptimizerService", "Calibrate", Role::Operate),
    ("OptimizerService", "Optimize", Role::Operate),
    ("OptimizerService", "ListMixes", Role::Observe),
    ("TelemetryService", "GetSnapshot", Role::Observe),
    ("TelemetryService", "WatchSnapshots", Role::Observe),
    ("TelemetryService", "Examine", Role::Observe),
];

/// Refuses a call that the caller's role does not reach, and of whoever comes from elsewhere and doesn't say who all but
/// [`OPEN`]. `path` is that of HTTP, such as `/sluice.v1.ModelService/ListModels`.
pub(super) fn check(caller: Caller, path: &str) -> Result<(), Failure> {
    match needed(path) {
        _ if caller.user == User::Elsewhere && path != OPEN => Err(Failure::NobodyKnown),
        Some((call, needed)) if !caller.may(needed) => Err(Failure::NotAllowed {
            call,
            needed,
            role: caller.role,
        }),
        _ => Ok(()),
    }
}

/// The call of this path and its role; `None` for those that are not Sluice's, or that there are not.
fn needed(path: &str) -> Option<(&'static str, Role)> {
    let (service, call) = path.strip_prefix("/sluice.v1.")?.split_once('/')?;
    let mut known = NEEDED.iter();
    let row = known
        .find(|(known_service, known_call, _)| (*known_service, *known_call) == (service, call));
    row.map(|(_, call, role)| (*call, *role))
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use sluice_proto::FILE_DESCRIPTOR_SET;

    use super::*;

    #[test]
    fn every_call_of_the_schema_has_a_role() {
        let files = prost_types::FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).unwrap();
        let services = files
            .file
            .iter()
            .filter(|file| file.package() == "sluice.v1");
        let mut calls = 0;
        for service in services.flat_map(|file| &file.service) {
            for method in &service.method {
                let path = format!("/sluice.v1.{}/{}", service.name(), method.name());
                assert!(needed(&path).is_some(), "{path} is open to all");
                calls += 1;
            }
        }
        assert_eq!(calls, NEEDED.len(), "a row is of no call");
        assert!(needed("/grpc.health.v1.Health/Check").is_none());
    }

    #[test]
    fn a_refusal_names_call_and_roles() {
        let caller = Caller {
            role: Some(Role::Generate),
            ..Caller::DAEMON
        };
        check(caller, "/sluice.v1.GenerationService/Generate").unwrap();
        let refused = check(caller, "/sluice.v1.ModelService/UnloadModel").unwrap_err();
        assert_eq!(
            refused.to_string(),
            "UnloadModel needs the role operate; you have generate"
        );
        let stranger = Caller {
            user: User::Elsewhere,
            role: None,
            ..caller
        };
        let refused = check(stranger, "/sluice.v1.ModelService/ListModels").unwrap_err();
        assert!(matches!(refused, Failure::NobodyKnown));
        let watch = check(stranger, "/grpc.health.v1.Health/Watch");
        assert!(matches!(watch, Err(Failure::NobodyKnown)));
        check(stranger, OPEN).unwrap();
    }
}
