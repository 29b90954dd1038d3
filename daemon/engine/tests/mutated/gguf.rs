//! Small GGUF files with sizes, a tokenizer and tensors, and changes of what it says.

use crate::change::{NUMBERS, Random};

const LAYERS: usize = 2;
const HIDDEN: u64 = 64;
const MLP: u64 = 128;
const TOKENS: usize = 64;
const HEAD: u64 = 16;
const EXPERTS: u64 = 4;
/// Numbers of the types that are used.
const U32: u32 = 4;
const F32: u32 = 6;
const TEXT: u32 = 8;
const ARRAY: u32 = 9;

#[derive(Clone)]
pub(crate) struct File {
    /// Key, type and bytes of each value.
    keys: Vec<(String, u32, Vec<u8>)>,
    /// Name, shape (innermost first), type and offset of each tensor.
    tensors: Vec<(String, Vec<u64>, u32, u64)>,
    /// Numbers of tensors and keys that the header says, where they differ.
    counts: [Option<u64>; 2],
    data_bytes: usize,
}

fn text(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

fn array(kind: u32, items: impl ExactSizeIterator<Item = Vec<u8>>) -> Vec<u8> {
    let mut bytes = kind.to_le_bytes().to_vec();
    bytes.extend_from_slice(&(items.len() as u64).to_le_bytes());
    bytes.extend(items.flatten());
    bytes
}

/// A Llama.
pub(crate) fn dense() -> File {
    let mut file = model("llama");
    for layer in 0..LAYERS {
        for (name, shape) in [
            ("ffn_gate", &[HIDDEN, MLP]),
            ("ffn_up", &[HIDDEN, MLP]),
            ("ffn_down", &[MLP, HIDDEN]),
        ] {
            file.tensor(&format!("blk.{layer}.{name}.weight"), shape);
        }
    }
    file
}

/// A Qwen3-MoE, whose layers have all of their experts in three tensors.
pub(crate) fn mixture() -> File {
    let mut file = model("qwen3moe");
    for (key, value) in [
        ("expert_count", EXPERTS as u32),
        ("expert_used_count", 2),
        ("expert_feed_forward_length", MLP as u32),
        ("attention.key_length", HEAD as u32),
        ("attention.value_length", HEAD as u32),
    ] {
        file.key(
            &format!("qwen3moe.{key}"),
            U32,
            value.to_le_bytes().to_vec(),
        );
    }
    for layer in 0..LAYERS {
        for (name, shape) in [
            ("attn_q_norm", &[HEAD][..]),
            ("attn_k_norm", &[HEAD]),
            ("ffn_gate_inp", &[HIDDEN, EXPERTS]),
            ("ffn_gate_exps", &[HIDDEN, MLP, EXPERTS]),
            ("ffn_up_exps", &[HIDDEN, MLP, EXPERTS]),
            ("ffn_down_exps", &[MLP, HIDDEN, EXPERTS]),
        ] {
            file.tensor(&format!("blk.{layer}.{name}.weight"), shape);
        }
    }
    file
}

/// What models of both architectures have.
fn model(architecture: &str) -> File {
    let mut file = File {
        keys: Vec::new(),
        tensors: Vec::new(),
        counts: [None; 2],
        data_bytes: 0,
    };
    file.key("general.architecture", TEXT, text(architecture));
    for (key, value) in [
        ("block_count", LAYERS as u32),
        ("embedding_length", HIDDEN as u32),
        ("feed_forward_length", MLP as u32),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 2),
        ("context_length", 512),
        ("vocab_size", TOKENS as u32),
    ] {
        file.key(
            &format!("{architecture}.{key}"),
            U32,
            value.to_le_bytes().to_vec(),
        );
    }
    for (key, value) in [
        ("attention.layer_norm_rms_epsilon", 1e-5_f32),
        ("rope.freq_base", 1e4),
    ] {
        file.key(
            &format!("{architecture}.{key}"),
            F32,
            value.to_le_bytes().to_vec(),
        );
    }
    let token = |index: usize| text(&format!("{}", char::from(b'!' + index as u8)));
    file.key("tokenizer.ggml.model", TEXT, text("gpt2"));
    file.key("tokenizer.ggml.pre", TEXT, text("llama-bpe"));
    file.key(
        "tokenizer.ggml.tokens",
        ARRAY,
        array(TEXT, (0..TOKENS).map(token)),
    );
    let kind = |_| 1_u32.to_le_bytes().to_vec();
    file.key(
        "tokenizer.ggml.token_type",
        ARRAY,
        array(5, (0..TOKENS).map(kind)),
    );
    let merges = ["! \"", "# $"].map(text);
    file.key(
        "tokenizer.ggml.merges",
        ARRAY,
        array(TEXT, merges.into_iter()),
    );
    file.key(
        "tokenizer.ggml.eos_token_id",
        U32,
        1_u32.to_le_bytes().to_vec(),
    );
    file.key(
        "tokenizer.ggml.bos_token_id",
        U32,
        2_u32.to_le_bytes().to_vec(),
    );
    file.tensor("token_embd.weight", &[HIDDEN, TOKENS as u64]);
    file.tensor("output_norm.weight", &[HIDDEN]);
    file.tensor("output.weight", &[HIDDEN, TOKENS as u64]);
    for layer in 0..LAYERS {
        for (name, shape) in [
            ("attn_norm", &[HIDDEN][..]),
            ("attn_q", &[HIDDEN, HIDDEN]),
            ("attn_k", &[HIDDEN, HIDDEN / 2]),
            ("attn_v", &[HIDDEN, HIDDEN / 2]),
            ("attn_output", &[HIDDEN, HIDDEN]),
            ("ffn_norm", &[HIDDEN]),
        ] {
            file.tensor(&format!("blk.{layer}.{name}.weight"), shape);
        }
    }
    file
}

impl File {
    fn key(&mut self, key: &str, kind: u32, bytes: Vec<u8>) {
        self.keys.push((key.to_owned(), kind, bytes));
    }

    fn tensor(&mut self, name: &str, shape: &[u64]) {
        let offset = self.data_bytes as u64;
        let bytes = shape.iter().product::<u64>() as usize * 4;
        self.tensors
            .push((name.to_owned(), shape.to_vec(), 0, offset));
        self.data_bytes += bytes.next_multiple_of(32);
    }

    /// Changes something that it says.
    pub(crate) fn change(&mut self, random: &mut Random) {
        for _ in 0..1 + random.below(2) {
            let number = NUMBERS[random.below(NUMBERS.len())];
            let (keys, tensors) = (self.keys.len(), self.tensors.len());
            match random.below(12) {
                0 => self.counts[random.below(2)] = Some(number),
                1 => drop(self.keys.remove(random.below(keys))),
                2 => self.keys[random.below(keys)].1 = random.below(14) as u32,
                3 => {
                    // The length of a text or an array, or a number.
                    let bytes = &mut self.keys[random.below(keys)].2;
                    let at = random.below(bytes.len().saturating_sub(8));
                    let place = bytes[at..].iter_mut().zip(number.to_le_bytes());
                    place.for_each(|(place, byte)| *place = byte);
                }
                4 => {
                    let again = self.keys[random.below(keys)].clone();
                    self.keys.push(again);
                }
                5 => {
                    // Arrays within arrays.
                    let depth = 1 + random.below(300);
                    let nested = (0..depth).fold(array(U32, std::iter::empty()), |inner, _| {
                        array(ARRAY, std::iter::once(inner))
                    });
                    self.key("llama.nested", ARRAY, nested);
                }
                6 => {
                    let long = array(TEXT, (0..random.below(20_000)).map(|_| text("ab")));
                    self.key("tokenizer.ggml.added", ARRAY, long);
                }
                7 => {
                    let shape = &mut self.tensors[random.below(tensors)].1;
                    shape[0] = number;
                }
                8 => {
                    let shape = &mut self.tensors[random.below(tensors)].1;
                    shape.resize(random.below(9), number);
                }
                9 => self.tensors[random.below(tensors)].2 = random.below(45) as u32,
                10 => self.tensors[random.below(tensors)].3 = number,
                _ => {
                    let template = "{{ 1 }}".repeat(random.below(1000));
                    self.key("tokenizer.chat_template", TEXT, text(&template));
                }
            }
        }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(3_u32.to_le_bytes());
        let counts = [self.tensors.len(), self.keys.len()];
        for (count, said) in counts.into_iter().zip(self.counts) {
            out.extend(said.unwrap_or(count as u64).to_le_bytes());
        }
        for (key, kind, bytes) in &self.keys {
            out.extend(text(key));
            out.extend(kind.to_le_bytes());
            out.extend(bytes);
        }
        for (name, shape, kind, offset) in &self.tensors {
            out.extend(text(name));
            out.extend((shape.len() as u32).to_le_bytes());
            out.extend(shape.iter().flat_map(|size| size.to_le_bytes()));
            out.extend(kind.to_le_bytes());
            out.extend(offset.to_le_bytes());
        }
        out.resize(out.len().next_multiple_of(32) + self.data_bytes, 0);
        out
    }
}
