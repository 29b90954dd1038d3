//! HTTP/1.1 by hand, for what no library would send, too.

use std::{fs, net::SocketAddr, path::Path};

use serde_json::Value;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::support::{self, Daemon, until, within};

/// A daemon that serves HTTP.
pub(crate) struct HttpDaemon {
    pub(crate) daemon: Daemon,
    pub(crate) port: SocketAddr,
}

/// An answer, read to its end.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: String,
}

impl HttpDaemon {
    pub(crate) async fn start(arguments: &[&str]) -> Self {
        let folder = TempDir::new().unwrap();
        let socket = folder.path().join("s");
        let mut command = support::command(folder.path());
        command
            .args(["--http", "127.0.0.1:0", "--socket"])
            .arg(&socket)
            .args(arguments);
        let daemon = Daemon::spawn(folder, socket, command).await;
        let port = port(&daemon.log());
        Self { daemon, port }
    }

    /// One with the embedded model, ready to generate.
    pub(crate) async fn embedded() -> Self {
        let daemon = Self::start(&[]).await;
        daemon.ready().await;
        daemon
    }

    /// One with a model, ready to generate.
    pub(crate) async fn with_model(model: &Path, arguments: &[&str]) -> Self {
        let model = ["--model", model.to_str().unwrap()];
        let daemon = Self::start(&[&model, arguments].concat()).await;
        daemon.ready().await;
        daemon
    }

    async fn ready(&self) {
        use sluice_proto::v1::ModelState;
        self.daemon.model_state(ModelState::Ready).await;
    }

    pub(crate) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.port).await.unwrap()
    }

    /// Sends bytes, and reads until the connection ends.
    pub(crate) async fn raw(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect().await;
        stream.write_all(bytes).await.unwrap();
        let mut answer = Vec::new();
        let end = within("the end of a connection", stream.read_to_end(&mut answer)).await;
        end.unwrap();
        String::from_utf8(answer).unwrap()
    }

    /// Sends a request with these headers beside those that each has.
    pub(crate) async fn send(&self, line: &str, headers: &[&str], body: &str) -> Answer {
        let headers: String = headers
            .iter()
            .map(|header| format!("{header}\r\n"))
            .collect();
        let host = match headers.to_ascii_lowercase().contains("host:") {
            true => String::new(),
            false => format!("Host: {}\r\n", self.port),
        };
        let request = format!(
            "{line} HTTP/1.1\r\n{host}{headers}Connection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        Answer::read(&self.raw(request.as_bytes()).await)
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(&format!("GET {path}"), &[], "").await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        let kind = "Content-Type: application/json";
        self.send(&format!("POST {path}"), &[kind], &body.to_string())
            .await
    }

    /// Waits until the latest request is in this state.
    pub(crate) async fn latest_is(&self, state: sluice_proto::v1::OperationState) {
        use sluice_proto::v1;
        until("the state of a request", || async {
            let request = v1::ListOperationsRequest {
                kinds: vec![v1::OperationKind::Generate.into()],
                ..Default::default()
            };
            let answer = self
                .daemon
                .operations()
                .await
                .list_operations(request)
                .await;
            let mut list = answer.unwrap().into_inner().operations;
            list.sort_by_key(|operation| operation.operation_id);
            list.last()
                .is_some_and(|operation| operation.state() == state)
        })
        .await;
    }
}

/// The port that the daemon tells in its log.
pub(crate) fn port(log: &str) -> SocketAddr {
    let line = log.lines().find(|line| line.contains("serving HTTP"));
    let (_, port) = line
        .and_then(|line| line.split_once("port="))
        .unwrap_or_else(|| panic!("no port in\n{log}"));
    let port = port.split(' ').next().unwrap_or_default();
    port.trim().parse().unwrap()
}

impl Answer {
    /// The first answer in these bytes, whose connection has ended.
    pub(crate) fn read(text: &str) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((text, ""));
        let status = head
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok());
        let head = head.to_ascii_lowercase();
        let body = match head.contains("transfer-encoding: chunked") {
            true => dechunked(body),
            false => body.to_owned(),
        };
        Self {
            status: status.unwrap_or_else(|| panic!("no status in {text:?}")),
            head,
            body,
        }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines
            .filter(|(found, _)| *found == name)
            .map(|(_, value)| value)
            .next()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("no JSON: {}", self.body))
    }

    /// The answer is an error of OpenAI's API with this status; its field and its words.
    #[track_caller]
    pub(crate) fn refused(&self, status: u16) -> (Option<String>, String) {
        assert_eq!(self.status, status, "{}", self.body);
        let error = &self.json()["error"];
        let field = error["param"].as_str().map(str::to_owned);
        (field, error["message"].as_str().unwrap().to_owned())
    }

    /// The server-sent events, without their comments; the last is `[DONE]`.
    pub(crate) fn events(&self) -> Vec<Value> {
        let events = self.body.split("\n\n").filter(|event| !event.is_empty());
        let events: Vec<_> = events
            .filter_map(|event| event.strip_prefix("data: "))
            .collect();
        let (last, events) = events.split_last().expect("a stream has events");
        assert_eq!(*last, "[DONE]");
        let read = events.iter().map(|event| serde_json::from_str(event));
        read.collect::<Result<_, _>>().unwrap()
    }

    /// Lines of JSON.
    pub(crate) fn lines(&self) -> Vec<Value> {
        let read = self.body.lines().map(serde_json::from_str);
        read.collect::<Result<_, _>>().unwrap()
    }
}

fn dechunked(mut body: &str) -> String {
    let mut whole = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        whole += &rest[..size];
        body = &rest[size + 2..];
        if size == 0 {
            break;
        }
    }
    whole
}

/// A file of tokens that only this user can read.
pub(crate) fn token_file(folder: &TempDir, tokens: &str) -> String {
    use std::os::unix::fs::PermissionsExt;
    let path = folder.path().join("tokens");
    fs::write(&path, tokens).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    path.to_str().unwrap().to_owned()
}
