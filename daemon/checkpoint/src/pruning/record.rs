//! The record in a pruned file: what was removed from what. It is hostile until it was checked.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use sluice_codec::container::Container;
use sluice_shared::pruning::PruneScore;
use sluice_weights::{HIDDEN_SIZE_MAX, KeptKvHeads, KeptSizes, Shape};

use super::PruneShares;

/// The record's name among a container's files.
pub const RECORD_FILE: &str = "sluice-optimization.json";

/// Largest record in bytes. One that lists nine of ten channels of 128 layers with 32 Ki of them has about 23 MB.
pub(super) const BYTES_MAX: u64 = 32 << 20;
/// The version that is written, and the only one that is read.
const VERSION: u32 = 1;
/// Most hexadecimal digits of a hash.
const HASH_DIGITS_MAX: usize = 64;

/// What was removed from what, and how it was chosen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PruningRecord {
    /// Hash of the tensors that the file was made from, in hexadecimal digits.
    pub source_hash: String,
    /// What units were chosen by.
    #[serde(with = "score_name")]
    pub score: PruneScore,
    /// The shares that were asked for.
    pub shares: PruneShares,
    /// Hash of the calibration file that scores and compensation came from; `None` where there was none.
    pub calibration_hash: Option<String>,
    /// Whether the weights that stay were fitted to make up for those that went.
    pub is_compensated: bool,
    /// KV heads of each layer before.
    pub kv_heads: usize,
    /// MLP channels of each layer before.
    pub channels: usize,
    /// What was removed, layer by layer.
    pub layers: Vec<PrunedLayer>,
}

/// What is gone from a layer: indices in the unpruned model, rising.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrunedLayer {
    /// KV heads, each with all of its query heads.
    pub removed_kv_heads: Vec<u16>,
    /// MLP channels.
    pub removed_channels: Vec<u32>,
}

/// A score by its name.
mod score_name {
    use super::{Deserialize, Deserializer, PruneScore, Serializer, de};

    pub(super) fn serialize<S: Serializer>(score: &PruneScore, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(score.name())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PruneScore, D::Error> {
        let name = String::deserialize(from)?;
        name.parse().map_err(de::Error::custom)
    }
}

/// The record as the file has it.
#[derive(Deserialize)]
struct RecordFile {
    version: u32,
    pruning: Option<serde_json::Value>,
}

impl PruningRecord {
    /// Parses a record.
    pub(super) fn read(bytes: &[u8]) -> Result<Self, String> {
        let file: RecordFile = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if file.version != VERSION {
            return Err(format!(
                "version {} is not supported; a later version of sluiced may read it",
                file.version
            ));
        }
        let pruning = file.pruning.ok_or("it says nothing of pruning")?;
        serde_json::from_value(pruning).map_err(|error| error.to_string())
    }

    /// The record's bytes.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let file = serde_json::json!({ "version": VERSION, "pruning": self });
        let mut text = serde_json::to_vec(&file).expect("names and numbers make JSON");
        text.push(b'\n');
        text
    }

    /// The record of a file that was opened; `None` where it was not pruned, or the record is malformed, which a load
    /// tells.
    #[must_use]
    pub fn of_container(container: &Container) -> Option<Self> {
        let mut files = container.header().files.iter();
        let file = files.find(|file| file.name == RECORD_FILE && file.length <= BYTES_MAX)?;
        let record = Self::read(&container.read_file(file).ok()?).ok()?;
        record.check_indices().is_ok().then_some(record)
    }

    /// Checks everything that a load relies on.
    pub(super) fn check(&self, shape: &Shape) -> Result<(), String> {
        let found = (self.layers.len(), self.kv_heads, self.channels);
        let expected = (shape.layers, shape.kv_heads, shape.intermediate_size);
        if found != expected {
            let sizes = |(layers, heads, channels): (usize, usize, usize)| {
                format!("{layers} layers of {heads} KV heads and {channels} channels")
            };
            return Err(format!(
                "it is of a model with {}, and this one has {}",
                sizes(found),
                sizes(expected)
            ));
        }
        self.check_indices()
    }

    /// Checks what can be checked without the model's shape.
    fn check_indices(&self) -> Result<(), String> {
        // So that no sum or product of them is beyond what an integer holds.
        if self.kv_heads > usize::from(u16::MAX) || self.channels > HIDDEN_SIZE_MAX {
            return Err("it is of a model that is too large".to_owned());
        }
        self.shares.check().map_err(|error| error.to_string())?;
        let hashes = [Some(&self.source_hash), self.calibration_hash.as_ref()];
        let is_hash = |hash: &String| {
            (1..=HASH_DIGITS_MAX).contains(&hash.len())
                && hash.bytes().all(|digit| digit.is_ascii_hexdigit())
        };
        if !hashes.into_iter().flatten().all(is_hash) {
            return Err("a hash is not hexadecimal digits".to_owned());
        }
        for (index, layer) in self.layers.iter().enumerate() {
            let heads = layer.removed_kv_heads.iter().map(|&head| usize::from(head));
            let channels = layer.removed_channels.iter().map(|&at| at as usize);
            check_removed(heads, self.kv_heads)
                .map_err(|problem| format!("layer {index}: KV heads {problem}"))?;
            check_removed(channels, self.channels)
                .map_err(|problem| format!("layer {index}: channels {problem}"))?;
        }
        Ok(())
    }

    /// What each layer still has.
    pub(super) fn kept_sizes(&self) -> Vec<KeptSizes> {
        let sizes = self.layers.iter().map(|layer| {
            let removed = &layer.removed_kv_heads;
            let kept: Vec<u16> = (0..self.kv_heads as u16)
                .filter(|head| removed.binary_search(head).is_err())
                .collect();
            KeptSizes {
                kv_heads: match removed.is_empty() {
                    true => None,
                    false => KeptKvHeads::new(&kept, self.kv_heads),
                },
                channels: self.channels - layer.removed_channels.len(),
            }
        });
        sizes.collect()
    }

    /// KV heads of all layers that were removed, and how many there were.
    #[must_use]
    pub fn removed_kv_heads(&self) -> (usize, usize) {
        let layers = self.layers.iter();
        let removed = layers.map(|layer| layer.removed_kv_heads.len()).sum();
        (removed, self.kv_heads * self.layers.len())
    }

    /// MLP channels of all layers that were removed, and how many there were.
    #[must_use]
    pub fn removed_channels(&self) -> (usize, usize) {
        let layers = self.layers.iter();
        let removed = layers.map(|layer| layer.removed_channels.len()).sum();
        (removed, self.channels * self.layers.len())
    }
}

/// Checks that indices rise, lie below `all`, and leave one at least.
fn check_removed(indices: impl Iterator<Item = usize>, all: usize) -> Result<(), String> {
    let (mut next, mut count) = (0, 0);
    for index in indices {
        if index < next {
            return Err(format!("do not rise at {index}"));
        }
        if index >= all {
            return Err(format!("include {index} of {all}"));
        }
        (next, count) = (index + 1, count + 1);
    }
    match count < all {
        true => Ok(()),
        false => Err("are all removed".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use sluice_weights::{LayerKind, TensorNaming};

    use super::*;

    fn shape() -> Shape {
        Shape {
            naming: TensorNaming::Llada,
            layers: 2,
            hidden_size: 64,
            attention_heads: 4,
            kv_heads: 4,
            head_dim: 16,
            intermediate_size: 6,
            padded_vocab_size: 100,
            context_length: 32,
            causal: false,
            tied: false,
            biases: false,
            qk_norms: false,
            layer_kind: LayerKind::Attention,
        }
    }

    fn record() -> PruningRecord {
        PruningRecord {
            source_hash: "00ff".to_owned(),
            score: PruneScore::L2,
            shares: PruneShares {
                heads: 0.25,
                channels: 0.2,
            },
            calibration_hash: None,
            is_compensated: false,
            kv_heads: 4,
            channels: 6,
            layers: vec![
                PrunedLayer {
                    removed_kv_heads: vec![0, 3],
                    removed_channels: vec![5],
                },
                PrunedLayer::default(),
            ],
        }
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let read = PruningRecord::read(&record().to_bytes()).unwrap();
        assert_eq!(read, record());
        read.check(&shape()).unwrap();
        let [first, second] = &read.kept_sizes()[..] else {
            panic!("two layers");
        };
        let heads = first.kv_heads.as_ref().unwrap();
        assert_eq!(heads.iter().collect::<Vec<_>>(), [1, 2]);
        assert_eq!((first.channels, second.channels), (5, 6));
        assert_eq!(second.kv_heads, None);
        assert_eq!(
            (read.removed_kv_heads(), read.removed_channels()),
            ((2, 8), (1, 12))
        );
    }

    #[test]
    fn what_a_record_may_not_say_is_refused() {
        type Change = fn(&mut PruningRecord);
        let changes: [(&str, Change); 9] = [
            ("it is of a model with 1 layers", |record| {
                record.layers.pop();
            }),
            ("and this one has 2 layers of 4 KV heads", |record| {
                record.kv_heads = 5;
            }),
            ("must be at least 0 and below 1", |record| {
                record.shares.heads = 1.0;
            }),
            ("not hexadecimal digits", |record| {
                record.source_hash = "\u{1b}[2J".to_owned();
            }),
            ("layer 0: KV heads do not rise at 0", |record| {
                record.layers[0].removed_kv_heads = vec![3, 0];
            }),
            ("layer 1: KV heads include 4 of 4", |record| {
                record.layers[1].removed_kv_heads = vec![4];
            }),
            ("layer 1: KV heads are all removed", |record| {
                record.layers[1].removed_kv_heads = vec![0, 1, 2, 3];
            }),
            ("layer 0: channels do not rise at 2", |record| {
                record.layers[0].removed_channels = vec![2, 2];
            }),
            ("layer 0: channels are all removed", |record| {
                record.layers[0].removed_channels = (0..6).collect();
            }),
        ];
        for (problem, change) in changes {
            let mut changed = record();
            change(&mut changed);
            let refused = changed.check(&shape()).unwrap_err();
            assert!(refused.contains(problem), "{refused}");
        }
        for (problem, text) in [
            ("version 2 is not supported", r#"{"version":2}"#),
            ("says nothing of pruning", r#"{"version":1}"#),
            ("missing field", r#"{"version":1,"pruning":{}}"#),
            ("expected value", "?"),
        ] {
            let refused = PruningRecord::read(text.as_bytes()).unwrap_err();
            assert!(refused.contains(problem), "{refused}");
        }
    }
}
