//! A recurrent model's state: the file that it is saved in and given back from, and the messages in which it travels.
//!
//! The file is a safetensors file in `f32`. Each layer has `layers.N.heads` of [heads, head size, head size], with a row for each
//! key channel, and the last inputs of its two halves, `layers.N.time_mix_input` and `layers.N.channel_mix_input`, of [hidden
//! size]. Metadata says the rest.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, Read},
    path::Path,
    sync::Arc,
};

use futures_util::{Stream, StreamExt, stream};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use sluice_proto::v1::{
    GenerateWithStateBegin, GenerateWithStateRequest, GenerateWithStateResponse, SequenceState,
    generate_with_state_request::Part, generate_with_state_response::Part as AnswerPart,
};
use sluice_shared::units;
use tonic::Status;

use super::whole_file;
use crate::output::Failure;

/// What a file says that it is.
const FORMAT: &str = "sluice state";
/// The version of the file's format.
const VERSION: &str = "1";
/// Largest state: the daemon takes no larger one.
const BYTES_MAX: u64 = 128 << 20;
/// Largest file. Its header tells of three tensors a layer, in less than a sixteenth of what the smallest layer has.
const FILE_BYTES_MAX: u64 = BYTES_MAX + BYTES_MAX / 16;
/// Bytes of a state that are sent at once.
const CHUNK_BYTES: usize = 256 << 10;

/// A state: what it is of, and its elements as they travel.
#[derive(Debug, Default, Clone, PartialEq)]
pub(super) struct State {
    header: SequenceState,
    bytes: Vec<u8>,
}

/// The parts of a layer in the order in which they travel: their names in the file, and their shapes.
fn layer_parts(header: &SequenceState, layer: u32) -> [(String, Vec<usize>); 3] {
    let [hidden, head] = [header.hidden_size, header.head_size].map(|size| size as usize);
    let heads = hidden.checked_div(head).unwrap_or(0);
    [
        (format!("layers.{layer}.time_mix_input"), vec![hidden]),
        (format!("layers.{layer}.channel_mix_input"), vec![hidden]),
        (format!("layers.{layer}.heads"), vec![heads, head, head]),
    ]
}

/// Reads the state that was saved in a file.
pub(super) fn read(path: &Path) -> Result<State, Failure> {
    let shown = path.display();
    let failed = |cause: io::Error| Failure::new(format!("read a state from {shown}: {cause}"));
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(failed)?;
    // Not by the length that the system tells: a pipe has none.
    file.take(FILE_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        let most = units::bytes(FILE_BYTES_MAX);
        return Err(Failure::new(format!(
            "{shown} has more than {most}, which is the most that a state's file takes"
        )));
    }
    parse(&bytes).map_err(|problem| {
        Failure::new(format!(
            "{shown} holds no state: {problem} (give a file that --save-state wrote)"
        ))
    })
}

fn parse(file: &[u8]) -> Result<State, String> {
    let tensors = SafeTensors::deserialize(file).map_err(|error| error.to_string())?;
    let (_, head) = SafeTensors::read_metadata(file).map_err(|error| error.to_string())?;
    let said = head.metadata().as_ref();
    let find = |key: &str| said.and_then(|said| said.get(key)).map(String::as_str);
    if find("format") != Some(FORMAT) {
        return Err(format!("its format is not \"{FORMAT}\""));
    }
    match find("version") {
        Some(VERSION) => {}
        other => {
            let other = other.unwrap_or("none");
            return Err(format!(
                "its version is {other}; this program reads {VERSION}"
            ));
        }
    }
    let want = |key: &str| find(key).ok_or_else(|| format!("it does not say {key}"));
    let wrong = |key: &str| format!("what it says of {key} is wrong");
    let number = |key: &str| want(key)?.parse().map_err(|_| wrong(key));
    let sizes = tensors.tensor("layers.0.heads").ok();
    let sizes = sizes.as_ref().map(|heads| heads.shape());
    let Some(&[heads, head_size, _]) = sizes else {
        return Err("tensor layers.0.heads of [heads, head size, head size] is missing".to_owned());
    };
    let small = |size: Option<usize>| {
        let size = size.and_then(|size| u32::try_from(size).ok());
        size.ok_or_else(|| "its sizes are too large".to_owned())
    };
    let header = SequenceState {
        checkpoint: want("checkpoint")?.to_owned(),
        layers: small(Some(tensors.len() / 3))?,
        hidden_size: small(heads.checked_mul(head_size))?,
        head_size: small(Some(head_size))?,
        read_tokens: number("read_tokens")?,
        unread_token: match find("unread_token") {
            Some(token) => Some(token.parse().map_err(|_| wrong("unread_token"))?),
            None => None,
        },
        is_lossless: match want("is_lossless")? {
            "true" => true,
            "false" => false,
            _ => return Err(wrong("is_lossless")),
        },
    };
    let mut bytes = Vec::with_capacity(file.len());
    for (name, shape) in (0..header.layers).flat_map(|layer| layer_parts(&header, layer)) {
        let tensor = tensors.tensor(&name);
        let tensor = tensor.map_err(|_| format!("tensor {name} is missing"))?;
        if tensor.dtype() != Dtype::F32 {
            return Err(format!("tensor {name} is {:?}, not F32", tensor.dtype()));
        }
        if tensor.shape() != shape {
            let found = tensor.shape();
            return Err(format!(
                "tensor {name} has the shape {found:?}, not {shape:?}"
            ));
        }
        bytes.extend(tensor.data());
    }
    if tensors.len() % 3 != 0 {
        return Err("it has tensors that are no part of a state".to_owned());
    }
    Ok(State { header, bytes })
}

/// Writes a state to a file, in the place of one of that name.
pub(super) fn write(path: &Path, state: Option<&State>) -> Result<(), Failure> {
    let shown = path.display();
    let Some(state) = state else {
        return Err(Failure::new(format!(
            "nothing was written to {shown}: the daemon gave no state"
        )));
    };
    let bytes = serialized(state).map_err(|error| Failure::new(error.to_string()))?;
    whole_file::write(path, &bytes)
        .map_err(|cause| Failure::new(format!("write the state to {shown}: {cause}")))
}

fn serialized(state: &State) -> Result<Vec<u8>, safetensors::SafeTensorError> {
    let State { header, bytes } = state;
    let mut rest = &bytes[..];
    let parts = (0..header.layers).flat_map(|layer| layer_parts(header, layer));
    let views = parts.map(|(name, shape)| {
        let len = shape.iter().product::<usize>() * size_of::<f32>();
        let data = rest.split_off(..len).unwrap_or_default();
        Ok((name, TensorView::new(Dtype::F32, shape, data)?))
    });
    let views: Vec<_> = views.collect::<Result<_, safetensors::SafeTensorError>>()?;
    let said = [
        ("format", FORMAT.to_owned()),
        ("version", VERSION.to_owned()),
        ("checkpoint", header.checkpoint.clone()),
        ("read_tokens", header.read_tokens.to_string()),
        ("is_lossless", header.is_lossless.to_string()),
    ];
    let unread = (header.unread_token).map(|token| ("unread_token", token.to_string()));
    let said = said.into_iter().chain(unread);
    let said: HashMap<_, _> = said.map(|(key, value)| (key.to_owned(), value)).collect();
    safetensors::serialize(views, Some(said))
}

/// The messages of a call: what it asks for, then the state that it goes on from.
pub(super) fn messages(
    mut begin: GenerateWithStateBegin,
    state: Option<Arc<State>>,
) -> impl Stream<Item = GenerateWithStateRequest> + Send + 'static {
    let part = |part| GenerateWithStateRequest { part: Some(part) };
    begin.state = state.as_ref().map(|state| state.header.clone());
    let count = (state.as_ref()).map_or(0, |state| state.bytes.len().div_ceil(CHUNK_BYTES));
    let chunks = (0..count).filter_map(move |index| {
        let chunk = state.as_ref()?.bytes.chunks(CHUNK_BYTES).nth(index)?;
        Some(part(Part::StateChunk(chunk.to_vec())))
    });
    stream::iter([part(Part::Begin(begin))].into_iter().chain(chunks))
}

/// Reads the state that follows the last event; `None` if there is none.
pub(super) async fn receive(
    mut parts: impl Stream<Item = Result<GenerateWithStateResponse, Status>> + Unpin,
) -> Result<Option<State>, Status> {
    let mut state = None::<State>;
    while let Some(answer) = parts.next().await {
        match (answer?.part, &mut state) {
            (Some(AnswerPart::State(header)), _) => {
                let bytes = Vec::new();
                state = Some(State { header, bytes });
            }
            (Some(AnswerPart::StateChunk(chunk)), Some(state)) => {
                state.bytes.extend(chunk);
                if state.bytes.len() as u64 > BYTES_MAX {
                    return Err(broken());
                }
            }
            _ => {}
        }
    }
    let Some(state) = state else { return Ok(None) };
    let parts = (0..state.header.layers).flat_map(|layer| layer_parts(&state.header, layer));
    let elements = parts.map(|(_, shape)| shape.iter().product::<usize>());
    // A layer has elements, and there are no more than the bytes that came.
    let mut left = state.bytes.len() / size_of::<f32>();
    for count in elements {
        left = (left.checked_sub(count).filter(|_| count > 0)).ok_or_else(broken)?;
    }
    match left {
        0 => Ok(Some(state)),
        _ => Err(broken()),
    }
}

/// What the daemon sent is no whole state.
fn broken() -> Status {
    Status::data_loss("the daemon's state has other sizes than it says")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn some(layers: u32) -> State {
        let count = layers * (2 * 128 + 2 * 64 * 64);
        State {
            header: SequenceState {
                checkpoint: "0123456789abcdef".to_owned(),
                layers,
                hidden_size: 128,
                head_size: 64,
                read_tokens: 30,
                unread_token: Some(7),
                is_lossless: true,
            },
            bytes: (0..count)
                .flat_map(|at| (at as f32).to_le_bytes())
                .collect(),
        }
    }

    #[test]
    fn what_is_saved_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.safetensors");
        let mut ended = some(12);
        ended.header.unread_token = None;
        ended.header.is_lossless = false;
        for state in [some(2), ended] {
            write(&path, Some(&state)).unwrap();
            assert_eq!(read(&path).unwrap(), state);
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert!(write(&path, None).is_err());
        // A folder that is not there, and a disk that is full, leave nothing.
        let nowhere = folder.path().join("none/state");
        assert!(write(&nowhere, Some(&some(1))).is_err());
        let full = write(Path::new("/dev/full/state"), Some(&some(1)));
        assert!(full.is_err());
    }

    #[test]
    fn the_largest_states_file_has_room_for_its_header() {
        // Of the smallest layers, so that there are most of them.
        let mut state = some(0);
        state.header.hidden_size = 64;
        let layer = 4 * (2 * 64 + 64 * 64);
        state.header.layers = (BYTES_MAX / layer) as u32;
        state.bytes = vec![0; state.header.layers as usize * layer as usize];
        let file = serialized(&state).unwrap();
        assert!(file.len() as u64 > BYTES_MAX && file.len() as u64 <= FILE_BYTES_MAX);
    }

    #[test]
    fn tensors_have_names_and_shapes() {
        let file = serialized(&some(2)).unwrap();
        let tensors = SafeTensors::deserialize(&file).unwrap();
        assert_eq!(tensors.len(), 6);
        let heads = tensors.tensor("layers.1.heads").unwrap();
        assert_eq!(heads.shape(), [2, 64, 64]);
        // Behind the first layer, and the two inputs of the second.
        let first = (2 * 128 + 2 * 64 * 64) + 2 * 128;
        assert_eq!(heads.data()[..4], (first as f32).to_le_bytes());
    }

    #[test]
    fn other_files_are_refused_with_what_is_wrong() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let refused = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            match read(&path) {
                Err(Failure::Reported { message, .. }) => message,
                other => panic!("not refused: {other:?}"),
            }
        };
        let whole = serialized(&some(2)).unwrap();
        for bytes in [
            &whole[..whole.len() - 1],
            &whole[..100],
            &[],
            b"no such file at all",
        ] {
            assert!(refused(bytes).contains("holds no state"));
        }
        // A header that says it is as long as memory.
        let enormous = [&u64::MAX.to_le_bytes()[..], b"{}"].concat();
        assert!(refused(&enormous).contains("holds no state"));
        // Other words of the same length in the header.
        let with = |from: &str, to: &str| {
            assert_eq!(from.len(), to.len());
            let at = whole
                .windows(from.len())
                .position(|part| part == from.as_bytes());
            let at = at.expect("it is there");
            let mut bytes = whole.clone();
            bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
            refused(&bytes)
        };
        assert!(
            with("sluice state", "sluice story").contains("its format is not \"sluice state\"")
        );
        assert!(with("\"version\":\"1\"", "\"version\":\"9\"").contains("its version is 9"));
        assert!(
            with("\"read_tokens\":\"30\"", "\"read_tokens\":\"-3\"")
                .contains("read_tokens is wrong")
        );
        assert!(with("\"checkpoint\"", "\"chekcpoint\"").contains("does not say checkpoint"));
        assert!(with("layers.1.heads", "layers.7.heads").contains("layers.1.heads is missing"));
        assert!(with("layers.0.heads", "layers.7.heads").contains("layers.0.heads of"));
        assert!(with("[2,64,64]", "[4,64,32]").contains("has the shape"));
        assert!(with("\"F32\"", "\"I32\"").contains("is I32, not F32"));
    }

    #[tokio::test]
    async fn it_travels_in_chunks_and_comes_whole_or_not_at_all() {
        let state = some(20);
        let answers = |state: State| {
            let sent = messages(GenerateWithStateBegin::default(), Some(Arc::new(state)));
            sent.map(|message| {
                let part = match message.part.expect("a part") {
                    Part::Begin(begin) => AnswerPart::State(begin.state.expect("a state")),
                    Part::StateChunk(chunk) => AnswerPart::StateChunk(chunk),
                };
                Ok(GenerateWithStateResponse { part: Some(part) })
            })
        };
        assert_eq!(answers(state.clone()).count().await, 1 + 3);
        let came = receive(Box::pin(answers(state.clone()))).await.unwrap();
        assert_eq!(came, Some(state.clone()));
        let mut cut = state.clone();
        cut.bytes.truncate(1000);
        assert!(receive(Box::pin(answers(cut))).await.is_err());
        let mut long = state.clone();
        long.bytes.extend([0; 4]);
        assert!(receive(Box::pin(answers(long))).await.is_err());
        let mut endless = state;
        endless.header.layers = u32::MAX;
        endless.header.hidden_size = 0;
        assert!(receive(Box::pin(answers(endless))).await.is_err());
        let nothing = stream::iter(Vec::new());
        assert_eq!(receive(nothing).await.unwrap(), None);
    }
}
