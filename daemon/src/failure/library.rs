//! The table's rows for models on disk and for the hub that they come from.

use std::io;

use sluice_hub::HubError;
use sluice_shared::{names, units};
use tonic::Code;

use super::{Failure, row::ErrorRow};
use crate::state::SaveError;

/// Rows of the library; others have none here.
pub(super) fn of(failure: &Failure) -> ErrorRow {
    match failure {
        Failure::ModelName(error) => {
            let row = ErrorRow::invalid("INVALID_NAME", "model");
            // No name of the hub lacks the slash, so what does is meant as a short name.
            match &names::near(&error.text, [])[..] {
                near if !near.is_empty() && !error.text.contains('/') => {
                    row.hint(format!("did you mean {}?", near.join(", or ")))
                }
                _ => row.hint(
                    "write it as the hub does, such as GSAI-ML/LLaDA-8B-Instruct; `sluice run --help` lists short names",
                ),
            }
        }
        Failure::UnknownModel {
            model,
            is_partial,
            near,
            ..
        } => {
            let row = ErrorRow::new(Code::NotFound, "UNKNOWN_MODEL").figure("model", model);
            match is_partial {
                false if !near.is_empty() && !model.contains('/') => row.hint(format!(
                    "did you mean {}? `sluice list` lists the models",
                    near.join(", or ")
                )),
                true => row.hint(format!("`sluice pull {model}` resumes the download")),
                false if model.contains('/') => row.hint(format!(
                    "`sluice list` lists the models; `sluice pull {model}` downloads this one"
                )),
                false => row.hint(
                    "`sluice list` lists the models; for a folder, give its path, such as ./NAME",
                ),
            }
        }
        Failure::NoModelsFolder => ErrorRow::new(Code::FailedPrecondition, "NO_MODELS_FOLDER")
            .hint("start sluiced with --models DIR"),
        Failure::Embedded => ErrorRow::new(Code::FailedPrecondition, "EMBEDDED")
            .hint("it uses memory only while it is loaded; `sluice unload` unloads it"),
        Failure::NotOurs { folder, .. } => ErrorRow::new(Code::FailedPrecondition, "NOT_OURS")
            .hint("delete the folder by hand if you are sure")
            .figure("folder", folder.display()),
        Failure::RemoveModel { path, .. } => {
            ErrorRow::new(Code::FailedPrecondition, "CANNOT_REMOVE")
                .hint("the daemon's user needs write permission for it")
                .figure("path", path.display())
        }
        Failure::SaveState(error) | Failure::NotSaved { error, .. } => state(error),
        Failure::ModelInUse { model } => ErrorRow::new(Code::FailedPrecondition, "MODEL_IN_USE")
            .hint("unload it first with `sluice unload`, or add --force")
            .figure("model", model),
        Failure::TooManyPulls { max } => ErrorRow::new(Code::ResourceExhausted, "TOO_MANY_PULLS")
            .hint("`sluice list` shows their progress")
            .figure("max", max)
            .retry(),
        Failure::PullingAnother { model, revision } => {
            ErrorRow::new(Code::FailedPrecondition, "PULLING_ANOTHER_REVISION")
                .hint("wait for it, or cancel it with Ctrl-C in the terminal that started it")
                .figure("model", model)
                .figure("revision", revision)
        }
        Failure::PullingWithAnotherToken { model } => {
            ErrorRow::new(Code::FailedPrecondition, "PULLING_WITH_ANOTHER_TOKEN")
                .hint("`sluice list` shows its progress; pull it again once that has ended")
                .figure("model", model)
        }
        Failure::PullCancelled { model } => ErrorRow::new(Code::Cancelled, "CANCELLED")
            .hint(format!("`sluice pull {model}` resumes it")),
        other => unreachable!("no failure of the library: {other}"),
    }
}

/// Rows of why the daemon's state is not on disk.
fn state(error: &SaveError) -> ErrorRow {
    match error {
        SaveError::Io { path, cause } => {
            let row = match cause.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                    ErrorRow::new(Code::ResourceExhausted, "NO_SPACE")
                        .hint("free space on that disk, and repeat the command")
                }
                _ => ErrorRow::new(Code::FailedPrecondition, "CANNOT_RECORD").hint(
                    "the daemon's user needs write permission for it; or write it into the configuration: sluiced --print-config",
                ),
            };
            row.figure("path", path.display())
        }
        SaveError::Locked { folder } => ErrorRow::new(Code::FailedPrecondition, "STATE_LOCKED")
            .hint("end the other one, or start one of the two with another --models")
            .figure("folder", folder.display()),
    }
}

/// Rows of what a hub's failures mean.
pub(super) fn hub(error: &HubError) -> ErrorRow {
    const TOKEN: &str = "set HF_TOKEN where you call sluice or for sluiced";
    match error {
        HubError::Endpoint { .. } => ErrorRow::new(Code::FailedPrecondition, "HUB_ENDPOINT")
            .hint("set sluiced's HF_ENDPOINT to an address such as https://huggingface.co"),
        HubError::Offline { .. } => ErrorRow::new(Code::FailedPrecondition, "OFFLINE")
            .hint("start sluiced without HF_HUB_OFFLINE, or `sluice load` what `sluice list` shows"),
        HubError::Unreachable { host, .. } => ErrorRow::new(Code::Unavailable, "HUB_UNREACHABLE")
            .hint("check the network of the daemon's machine (the service has no network without pull.conf: systemd/README.md); the downloaded part is kept, run the same command again to resume")
            .figure("host", host),
        HubError::Stalled { host, seconds } => ErrorRow::new(Code::Unavailable, "HUB_STALLED")
            .hint("the downloaded part is kept; run the same command again to resume")
            .figure("host", host)
            .figure("seconds", seconds),
        HubError::NoRepository { has_token, .. } => ErrorRow::new(Code::NotFound, "NO_REPOSITORY").hint(match has_token {
            true => "check the name, and whether the token may see it".to_owned(),
            false => format!("check the name; a private one needs a token: {TOKEN}"),
        }),
        HubError::NoRevision { .. } => ErrorRow::new(Code::NotFound, "NO_REVISION")
            .hint("name a branch, a tag or a commit of it, or none for its main branch"),
        HubError::Gated { page, has_token, .. } => ErrorRow::new(Code::PermissionDenied, "GATED").hint(match has_token {
            true => format!("ask for access at {page}"),
            false => format!("ask for access at {page}, then {TOKEN}"),
        }),
        HubError::WrongToken => ErrorRow::new(Code::Unauthenticated, "WRONG_TOKEN")
            .hint("create a new token at the hub; public models need none"),
        HubError::TooMany { host, .. } => ErrorRow::new(Code::Unavailable, "HUB_BUSY")
            .hint("try again later; those with a token may ask more often")
            .figure("host", host),
        HubError::Status { host, status } => ErrorRow::new(Code::Unavailable, "HUB_STATUS")
            .hint("try again later; the downloaded part is kept")
            .figure("host", host)
            .figure("status", status),
        HubError::WrongResponse { host, .. } => ErrorRow::new(Code::DataLoss, "HUB_ANSWER")
            .hint("the server is not a hub, or a proxy changes its answers")
            .figure("host", host),
        HubError::WrongHash { file, .. } => ErrorRow::new(Code::DataLoss, "WRONG_HASH")
            .hint("pull it again; if it fails twice, the disk or the hub is at fault")
            .figure("file", file),
        HubError::PickleOnly { file, .. } => ErrorRow::new(Code::FailedPrecondition, "PICKLE_ONLY")
            .hint("look for the same model with safetensors or GGUF files; sluice never opens pickles")
            .figure("file", file),
        HubError::NoModel { .. } => ErrorRow::new(Code::FailedPrecondition, "NO_MODEL_THERE")
            .hint("sluice takes folders with config.json and safetensors, and GGUF files"),
        HubError::Ambiguous { repository, .. } => ErrorRow::new(Code::FailedPrecondition, "AMBIGUOUS")
            .hint(format!("name one: `sluice pull {repository}:LABEL`, or --file NAME.gguf")),
        HubError::NoLabel { .. } => ErrorRow::new(Code::NotFound, "NO_LABEL").hint("choose one of the labels above"),
        HubError::NoSpace {
            needed_bytes,
            free_bytes,
            ..
        } => ErrorRow::new(Code::ResourceExhausted, "NO_SPACE")
            .hint(format!(
                "free {} more, for example with `sluice rm NAME`, or start sluiced with another --models",
                units::bytes(needed_bytes.saturating_sub(*free_bytes))
            ))
            .figure("needed_bytes", needed_bytes)
            .figure("free_bytes", free_bytes),
        HubError::Disk { path, cause, .. } => {
            let row = match cause.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                    ErrorRow::new(Code::ResourceExhausted, "NO_SPACE")
                        .hint("free space on that disk; the downloaded part is kept, run the same command again to resume")
                }
                _ => ErrorRow::new(Code::FailedPrecondition, "MODELS_FOLDER")
                    .hint("start sluiced with a --models folder that its user can write to"),
            };
            row.figure("path", path.display())
        }
        HubError::FolderTaken { folder } => ErrorRow::new(Code::FailedPrecondition, "TAKEN")
            .hint("move it away, and pull again")
            .figure("folder", folder.display()),
        HubError::Locked { .. } => ErrorRow::new(Code::FailedPrecondition, "PULL_LOCKED")
            .hint("wait for it, or start one of the two daemons with another --models"),
    }
}
