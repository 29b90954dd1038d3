//! Who may do what: by user and group on the Unix socket, by token on the loopback port.

use std::{
    fs::{self, Permissions},
    os::unix::{fs::PermissionsExt, net::UnixStream as StdStream},
    path::Path,
    thread,
};

use hyper_util::rt::TokioIo;
use rustix::{process::Gid, process::Uid};
use sluice_daemon::role::Role;
use sluice_proto::v1::{self, model_ref::By};
use testkit::certificates::write;
use tokio::net::UnixStream;
use tonic::{
    Code,
    transport::{Channel, Endpoint},
};

use crate::support::{
    Daemon, checkpoints, long, next,
    tls::{by, call, call_path, reason, token, token_lines},
    tokens, within,
};

/// Every call, and the least role that may make it.
const CALLS: [(&str, Role); 36] = [
    ("EmbeddingService/Embed", Role::Generate),
    ("GenerationService/Generate", Role::Generate),
    ("GenerationService/GenerateWithState", Role::Generate),
    ("GenerationService/WatchGeneration", Role::Generate),
    ("GenerationService/Score", Role::Generate),
    ("MemoryService/ImportSources", Role::Operate),
    ("MemoryService/ListCollections", Role::Generate),
    ("MemoryService/ListSources", Role::Generate),
    ("MemoryService/ReadSource", Role::Generate),
    ("MemoryService/SearchMemory", Role::Generate),
    ("MemoryService/ExportMemory", Role::Generate),
    ("MemoryService/RemoveSources", Role::Operate),
    ("MemoryService/WipeMemory", Role::Admin),
    ("ModelService/ListModels", Role::Observe),
    ("ModelService/InspectModel", Role::Observe),
    ("ModelService/PullModel", Role::Operate),
    ("ModelService/LoadModel", Role::Operate),
    ("ModelService/UnloadModel", Role::Operate),
    ("ModelService/RemoveModel", Role::Admin),
    ("OperationService/ListOperations", Role::Observe),
    ("OperationService/WatchOperation", Role::Observe),
    ("OperationService/CancelOperation", Role::Generate),
    ("OptimizerService/Plan", Role::Observe),
    ("OptimizerService/Apply", Role::Operate),
    ("OptimizerService/Restore", Role::Operate),
    ("OptimizerService/MeasureFidelity", Role::Operate),
    ("OptimizerService/ListFidelity", Role::Observe),
    ("OptimizerService/Compress", Role::Operate),
    ("OptimizerService/Decompress", Role::Operate),
    ("OptimizerService/Verify", Role::Operate),
    ("OptimizerService/Prune", Role::Operate),
    ("OptimizerService/Calibrate", Role::Operate),
    ("OptimizerService/Optimize", Role::Operate),
    ("OptimizerService/ListMixes", Role::Observe),
    ("TelemetryService/GetSnapshot", Role::Observe),
    ("TelemetryService/WatchSnapshots", Role::Observe),
];

/// A file with a token for each role.
fn token_file(folder: &Path) -> String {
    let path = write(&folder.join("tokens"), &token_lines());
    path.to_str().unwrap().to_owned()
}

/// A daemon that takes tokens, and its port.
pub(crate) async fn guarded(model: &Path, more: &[&str]) -> (Daemon, Channel) {
    let folder = tempfile::tempdir().unwrap();
    let file = token_file(folder.path());
    let arguments = [&["--token-file", &file, "--listen", "127.0.0.1:0"], more].concat();
    let daemon = Daemon::with_model(model, &arguments).await;
    let log = daemon.log();
    let port = log.split("port=127.0.0.1:").nth(1).unwrap();
    let port: String = port.chars().take_while(char::is_ascii_digit).collect();
    let address = format!("http://127.0.0.1:{port}");
    let channel = Endpoint::from_shared(address).unwrap().connect().await;
    (daemon, channel.unwrap())
}

#[tokio::test]
async fn each_role_may_make_its_calls_and_no_others() {
    let fixture = checkpoints::fixture("llada-tiny");
    // Without a role for everybody, which a token would add to.
    let (_daemon, channel) = guarded(&fixture, &["--roles", "admin=@70003"]).await;
    let (_open, open_channel) = guarded(&fixture, &[]).await;
    let mut table =
        String::from("| call | observe | generate | operate | admin |\n|---|---|---|---|---|\n");
    for (name, needed) in CALLS {
        let mut row = format!("| `{name}` |");
        for role in Role::ALL {
            let answer = call(&channel, Some(&token(role)), name).await;
            let refused =
                answer.is_err_and(|status| reason(status).as_deref() == Some("ROLE_NEEDED"));
            assert_eq!(refused, role < needed, "{name} by {role}");
            row += if refused { " – |" } else { " yes |" };
        }
        table += &(row + "\n");
        // Without a token as everybody, who may generate.
        let stranger = call(&open_channel, None, name).await;
        let refused =
            stranger.is_err_and(|status| reason(status).as_deref() == Some("ROLE_NEEDED"));
        assert_eq!(refused, needed > Role::Generate, "{name} without a token");
    }
    let written =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/peers.md")).unwrap();
    assert!(written.contains(&table), "docs/peers.md lacks:\n{table}");
    // Health is for all; a wrong token is for nothing.
    call_path(&channel, None, "/grpc.health.v1.Health/Check")
        .await
        .unwrap();
    let wrong = call(&channel, Some("guessed"), CALLS[3].0)
        .await
        .unwrap_err();
    assert_eq!(wrong.code(), Code::Unauthenticated);
}

#[tokio::test]
async fn a_request_is_its_own_users_to_watch_and_cancel() {
    let (daemon, channel) = guarded(checkpoints::slow(), &[]).await;
    let first = token(Role::Generate);
    let mut generation =
        v1::generation_service_client::GenerationServiceClient::new(channel.clone());
    let stream = generation.generate(by(Some(&first), long())).await.unwrap();
    let mut stream = stream.into_inner();
    let id = match within("its number", next(&mut stream)).await.unwrap() {
        Some(v1::generation_event::Event::Queued(queued)) => queued.request_id,
        other => panic!("{other:?}"),
    };
    let mut operations = v1::operation_service_client::OperationServiceClient::new(channel);
    let watch = v1::WatchGenerationRequest { operation_id: id };
    let cancel = v1::CancelOperationRequest { operation_id: id };
    // Another without a token, and an operator, who may cancel but not read.
    let operator = token(Role::Operate);
    for other in [None, Some(&*operator)] {
        let refused = generation
            .watch_generation(by(other, watch))
            .await
            .unwrap_err();
        assert_eq!(reason(refused).as_deref(), Some("NOT_YOURS"));
    }
    let refused = operations
        .cancel_operation(by(None, cancel))
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    // All see that it is there, and of what size.
    assert_eq!(daemon.request(id).await.operation_id, id);
    let observer = token(Role::Observe);
    let watched = v1::WatchOperationRequest {
        operation_id: id,
        follow: false,
    };
    operations
        .watch_operation(by(Some(&observer), watched))
        .await
        .unwrap();
    generation
        .watch_generation(by(Some(&first), watch))
        .await
        .unwrap();
    let admin = token(Role::Admin);
    generation
        .watch_generation(by(Some(&admin), watch))
        .await
        .unwrap();
    operations
        .cancel_operation(by(Some(&operator), cancel))
        .await
        .unwrap();
}

#[tokio::test]
async fn whoever_has_no_name_owns_what_its_connection_asked_for() {
    let (_daemon, channel) = guarded(checkpoints::slow(), &[]).await;
    let mut generation =
        v1::generation_service_client::GenerationServiceClient::new(channel.clone());
    let mut stream = generation.generate(long()).await.unwrap().into_inner();
    let Some(v1::generation_event::Event::Queued(queued)) = next(&mut stream).await.unwrap() else {
        panic!("it has a number first")
    };
    let cancel = v1::CancelOperationRequest {
        operation_id: queued.request_id,
    };
    let mut operations = v1::operation_service_client::OperationServiceClient::new(channel);
    assert!(
        operations
            .cancel_operation(cancel)
            .await
            .unwrap()
            .into_inner()
            .was_active
    );
}

#[tokio::test]
async fn paths_are_named_below_the_folders_and_nothing_is_told_of_others() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("shared");
    fs::create_dir(&folder).unwrap();
    fs::write(place.path().join("secret.sluice"), "secret").unwrap();
    let named = folder.to_str().unwrap();
    let model = checkpoints::fixture("llada-tiny");
    let (_daemon, channel) = guarded(&model, &["--model-folders", named]).await;
    let operator = token(Role::Operate);
    let mut models = v1::model_service_client::ModelServiceClient::new(channel.clone());
    let mut optimizer = v1::optimizer_service_client::OptimizerServiceClient::new(channel);
    let of = |path: &Path| {
        Some(v1::ModelRef {
            by: Some(By::Path(path.to_str().unwrap().to_owned())),
        })
    };
    let mut told = Vec::new();
    for path in [
        place.path().join("secret.sluice"),
        place.path().join("nothing.sluice"),
        model.join("model.sluice"),
    ] {
        let load = v1::LoadModelRequest {
            model: of(&path),
            ..Default::default()
        };
        let inspect = v1::InspectModelRequest { model: of(&path) };
        let output = path.to_str().unwrap().to_owned();
        let compress = v1::CompressRequest {
            model: of(&folder.join("model")),
            output_path: output.clone(),
            ..Default::default()
        };
        let verify = v1::VerifyRequest { input_path: output };
        for refused in [
            models.load_model(by(Some(&operator), load)).await.err(),
            models
                .inspect_model(by(Some(&operator), inspect))
                .await
                .err(),
            optimizer
                .compress(by(Some(&operator), compress))
                .await
                .err(),
            optimizer.verify(by(Some(&operator), verify)).await.err(),
        ] {
            let refused = refused.unwrap();
            assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
            told.push(refused.message().replace(path.to_str().unwrap(), "PATH"));
        }
    }
    told.dedup();
    assert_eq!(
        told.len(),
        1,
        "what is there and what is not are told alike: {told:?}"
    );
    // Below the folder it is looked for.
    let load = v1::LoadModelRequest {
        model: of(&folder.join("model")),
        ..Default::default()
    };
    let mut stream = models
        .load_model(by(Some(&operator), load))
        .await
        .unwrap()
        .into_inner();
    let failed = loop {
        match stream.message().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("there is no such model"),
            Err(status) => break status,
        }
    };
    assert_eq!(failed.code(), Code::NotFound, "{failed}");
}

/// A connection that this user, in these groups, opens.
async fn connected_as(socket: &Path, uid: u32, groups: &[u32]) -> Channel {
    let (path, groups) = (socket.to_owned(), groups.to_vec());
    // The kernel notes who opens a connection; of threads each has its own user.
    let open = move || {
        let groups: Vec<Gid> = groups.into_iter().map(Gid::from_raw).collect();
        rustix::thread::set_thread_groups(&groups).unwrap();
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(uid));
        rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
        rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
        StdStream::connect(path).unwrap()
    };
    let opening = thread::Builder::new().spawn(open).unwrap();
    let stream = opening.join().unwrap();
    stream.set_nonblocking(true).unwrap();
    let mut stream = Some(TokioIo::new(UnixStream::from_std(stream).unwrap()));
    Endpoint::from_static("http://localhost")
        .connect_with_connector(tower::service_fn(move |_| {
            let stream = stream.take();
            async move { stream.ok_or_else(|| std::io::Error::other("it was used")) }
        }))
        .await
        .unwrap()
}

#[tokio::test]
async fn users_and_groups_of_the_socket_have_their_roles() {
    if !rustix::process::geteuid().is_root() {
        return testkit::not_run("it takes root to be another user");
    }
    let rules = "observe=*; generate=70001; operate=@70002; admin=@70003";
    let daemon = Daemon::with_model(&checkpoints::fixture("llada-tiny"), &["--roles", rules]).await;
    // The test's own folder and socket are for its user alone.
    fs::set_permissions(daemon.folder.path(), Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&daemon.socket, Permissions::from_mode(0o666)).unwrap();
    // Requests are a user's, whatever the connection.
    let generate = |channel| v1::generation_service_client::GenerationServiceClient::new(channel);
    let one = connected_as(&daemon.socket, 70_001, &[]).await;
    let stream = generate(one).generate(tokens(&[1, 2], 64)).await.unwrap();
    let mut stream = stream.into_inner();
    let Some(v1::generation_event::Event::Queued(queued)) = next(&mut stream).await.unwrap() else {
        panic!("it has a number first")
    };
    let watch = v1::WatchGenerationRequest {
        operation_id: queued.request_id,
    };
    let again = connected_as(&daemon.socket, 70_001, &[]).await;
    generate(again).watch_generation(watch).await.unwrap();
    let other = connected_as(&daemon.socket, 70_002, &[]).await;
    let refused = generate(other).watch_generation(watch).await.unwrap_err();
    assert_eq!(reason(refused).as_deref(), Some("NOT_YOURS"));

    for (uid, groups, role) in [
        (70_000, &[][..], Role::Observe),
        (70_001, &[], Role::Generate),
        // By the primary group, which has the user's number here, and by others.
        (70_002, &[], Role::Operate),
        (70_000, &[1, 70_003], Role::Admin),
        (0, &[], Role::Admin),
    ] {
        let channel = connected_as(&daemon.socket, uid, groups).await;
        for (name, needed) in CALLS {
            let answer = call(&channel, None, name).await;
            let refused =
                answer.is_err_and(|status| reason(status).as_deref() == Some("ROLE_NEEDED"));
            assert_eq!(refused, role < needed, "{name} by {uid} in {groups:?}");
        }
    }
}

#[tokio::test]
async fn a_token_file_that_is_no_use_keeps_the_daemon_from_starting() {
    let folder = tempfile::tempdir().unwrap();
    let file = token_file(folder.path());
    fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
    let output =
        crate::support::run(folder.path(), &["--socket", "s", "--token-file", &file]).await;
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(
        !output.status.success() && told.contains("chmod 600"),
        "{told}"
    );
    assert!(!told.contains(&token(Role::Admin)), "{told}");
}

#[tokio::test]
async fn everybody_can_be_kept_from_the_port() {
    let (_daemon, channel) = guarded(
        &checkpoints::fixture("llada-tiny"),
        &["--roles", "admin=@70003"],
    )
    .await;
    let refused = call(&channel, None, "TelemetryService/GetSnapshot")
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert!(refused.message().ends_with("you have none"), "{refused}");
    let operator = token(Role::Operate);
    call(&channel, Some(&operator), "OptimizerService/Apply")
        .await
        .map_or_else(
            |status| assert_ne!(status.code(), Code::PermissionDenied, "{status}"),
            drop,
        );
}
