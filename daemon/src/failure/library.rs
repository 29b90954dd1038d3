//! The table's rows for models on disk and for the hub that they come from.

use std::io;

use sluice_hub::HubError;
use sluice_shared::units;
use tonic::Code;

use super::{Failure, table::Row};

/// Rows of the library; others have none here.
pub(super) fn of(failure: &Failure) -> Row {
    match failure {
        Failure::Name(_) => Row::invalid("INVALID_NAME", "name")
            .hint("write it as the hub does, such as GSAI-ML/LLaDA-8B-Instruct"),
        Failure::UnknownModel {
            model,
            is_partial,
            near,
            ..
        } => {
            let row = Row::new(Code::NotFound, "UNKNOWN_MODEL").figure("model", model);
            match is_partial {
                false if !near.is_empty() && !model.contains('/') => row.hint(format!(
                    "did you mean {}? `sluice list` shows what is here",
                    near.join(", or ")
                )),
                true => row.hint(format!("`sluice pull {model}` goes on with the download")),
                false if model.contains('/') => row.hint(format!(
                    "`sluice list` shows what is here; `sluice pull {model}` downloads it"
                )),
                false => row.hint(
                    "`sluice list` shows what is here; a folder is named by its path, such as ./NAME",
                ),
            }
        }
        Failure::NoModelsFolder => Row::new(Code::FailedPrecondition, "NO_MODELS_FOLDER")
            .hint("start sluiced with --models DIR"),
        Failure::Embedded => Row::new(Code::FailedPrecondition, "EMBEDDED")
            .hint("it takes memory only while it is loaded; `sluice unload` lets it go"),
        Failure::NotOurs { folder, .. } => Row::new(Code::FailedPrecondition, "NOT_OURS")
            .hint("delete it there by hand, if you are sure")
            .figure("folder", folder.display()),
        Failure::Remove { path, .. } => Row::new(Code::FailedPrecondition, "CANNOT_REMOVE")
            .hint("the daemon's user has to be able to write there")
            .figure("path", path.display()),
        Failure::Record { path, .. } => Row::new(Code::FailedPrecondition, "CANNOT_RECORD")
            .hint("the daemon's user has to be able to write there; the configuration can name the model, too")
            .figure("path", path.display()),
        Failure::ModelInUse { model } => Row::new(Code::FailedPrecondition, "MODEL_IN_USE")
            .hint("unload it first with `sluice unload`, or add --force")
            .figure("model", model),
        Failure::TooManyPulls { max } => Row::new(Code::ResourceExhausted, "TOO_MANY_PULLS")
            .hint("`sluice list` shows how far they are")
            .figure("max", max)
            .retry(),
        Failure::PullingAnother { model, revision } => {
            Row::new(Code::FailedPrecondition, "PULLING_ANOTHER_REVISION")
                .hint("wait for it, or stop it with Ctrl-C where it was begun")
                .figure("model", model)
                .figure("revision", revision)
        }
        Failure::PullCancelled { model } => Row::new(Code::Cancelled, "PULL_CANCELLED")
            .hint(format!("`sluice pull {model}` goes on from there")),
        other => unreachable!("no failure of the library: {other}"),
    }
}

/// Rows of what a hub's failures mean.
pub(super) fn hub(error: &HubError) -> Row {
    const TOKEN: &str = "set HF_TOKEN where you call sluice or for sluiced";
    match error {
        HubError::Endpoint { .. } => Row::new(Code::FailedPrecondition, "HUB_ENDPOINT")
            .hint("HF_ENDPOINT of sluiced has to be an address such as https://huggingface.co"),
        HubError::Offline { .. } => Row::new(Code::FailedPrecondition, "OFFLINE")
            .hint("start sluiced without HF_HUB_OFFLINE, or `sluice load` what `sluice list` shows"),
        HubError::Unreachable { host, .. } => Row::new(Code::Unavailable, "HUB_UNREACHABLE")
            .hint("check the network of the daemon's machine (the service has none without pull.conf: systemd/README.md); what came so far is kept, the same call goes on")
            .figure("host", host),
        HubError::Stalled { host, seconds } => Row::new(Code::Unavailable, "HUB_STALLED")
            .hint("what came so far is kept; the same call goes on")
            .figure("host", host)
            .figure("seconds", seconds),
        HubError::NoRepository { has_token, .. } => Row::new(Code::NotFound, "NO_REPOSITORY").hint(match has_token {
            true => "check the name, and whether the token may see it".to_owned(),
            false => format!("check the name; a private one needs a token: {TOKEN}"),
        }),
        HubError::NoRevision { .. } => Row::new(Code::NotFound, "NO_REVISION")
            .hint("name a branch, a tag or a commit of it, or none for its main branch"),
        HubError::Gated { page, has_token, .. } => Row::new(Code::PermissionDenied, "GATED").hint(match has_token {
            true => format!("ask for access at {page}"),
            false => format!("ask for access at {page}, then {TOKEN}"),
        }),
        HubError::WrongToken => Row::new(Code::Unauthenticated, "WRONG_TOKEN")
            .hint("make a new one at the hub; without any, what is public can be had"),
        HubError::TooMany { host, .. } => Row::new(Code::Unavailable, "HUB_BUSY")
            .hint("try again later; those with a token may ask more often")
            .figure("host", host),
        HubError::Status { host, status } => Row::new(Code::Unavailable, "HUB_STATUS")
            .hint("try again later; what came so far is kept")
            .figure("host", host)
            .figure("status", status),
        HubError::Answer { host, .. } => Row::new(Code::DataLoss, "HUB_ANSWER")
            .hint("this is no hub, or something on the way changes what it says")
            .figure("host", host),
        HubError::WrongHash { file, .. } => Row::new(Code::DataLoss, "WRONG_HASH")
            .hint("pull it again; when that happens twice, disk or hub are at fault")
            .figure("file", file),
        HubError::PickleOnly { file, .. } => Row::new(Code::FailedPrecondition, "PICKLE_ONLY")
            .hint("look for the same model with safetensors or GGUF files; sluice never opens pickles")
            .figure("file", file),
        HubError::NoModel { .. } => Row::new(Code::FailedPrecondition, "NO_MODEL_THERE")
            .hint("sluice takes folders with config.json and safetensors, and GGUF files"),
        HubError::Ambiguous { repository, .. } => Row::new(Code::FailedPrecondition, "AMBIGUOUS")
            .hint(format!("name one: `sluice pull {repository}:LABEL`, or --file NAME.gguf")),
        HubError::NoLabel { .. } => Row::new(Code::NotFound, "NO_LABEL").hint("name one that it has"),
        HubError::NoSpace {
            needed_bytes,
            free_bytes,
            ..
        } => Row::new(Code::ResourceExhausted, "NO_SPACE")
            .hint(format!(
                "make room for {} more, with `sluice rm NAME` or otherwise, or start sluiced with another --models",
                units::bytes(needed_bytes.saturating_sub(*free_bytes))
            ))
            .figure("needed_bytes", needed_bytes)
            .figure("free_bytes", free_bytes),
        HubError::Disk { path, cause, .. } => {
            let row = match cause.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                    Row::new(Code::ResourceExhausted, "NO_SPACE")
                        .hint("make room on that disk; what came so far is kept, the same call goes on")
                }
                _ => Row::new(Code::FailedPrecondition, "MODELS_FOLDER")
                    .hint("start sluiced with a --models that its user may write to"),
            };
            row.figure("path", path.display())
        }
        HubError::Taken { folder } => Row::new(Code::FailedPrecondition, "TAKEN")
            .hint("move it away, and pull again")
            .figure("folder", folder.display()),
        HubError::Locked { .. } => Row::new(Code::FailedPrecondition, "PULL_LOCKED")
            .hint("wait for it, or start one of the two daemons with another --models"),
    }
}
