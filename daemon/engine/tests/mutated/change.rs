//! Random changes.

use serde_json::{Value, json};

/// xorshift64*, which needs no crate and is the same everywhere.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        // Neighbours begin far from each other, and none at zero.
        Self(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.next()) * end.max(1) as u128) >> 64) as usize
    }
}

/// Numbers at which arithmetic goes wrong.
pub(crate) const NUMBERS: [u64; 16] = [
    0,
    1,
    2,
    3,
    7,
    64,
    1 << 14,
    1 << 16,
    1 << 20,
    1 << 24,
    1 << 31,
    1 << 32,
    1 << 40,
    1 << 62,
    i64::MAX as u64,
    u64::MAX,
];

/// A value that somebody might put in the place of any.
fn other(random: &mut Random, now: &Value) -> Value {
    let near = now.as_u64().unwrap_or(0);
    match random.below(16) {
        0 => Value::Null,
        1 => json!(random.below(2) == 0),
        2 => json!(-1),
        3 => json!([1e300, -0.5, 1e-300, 0.0, 0.1][random.below(5)]),
        4 => json!([]),
        5 => json!({}),
        6 => json!("x".repeat(random.below(1 << 16))),
        7 => json!(["../a", "", "BF16", "llama", "yarn", "I64", "model.gguf"][random.below(7)]),
        8 => json!((0..random.below(200)).fold(json!(1), |inner, _| json!([inner]))),
        9 => json!(vec![u64::MAX; random.below(100)]),
        10 => json!(near.wrapping_add(1)),
        11 => json!(near.wrapping_sub(1)),
        12 => json!(near.wrapping_mul(1 << random.below(40))),
        _ => json!(NUMBERS[random.below(NUMBERS.len())]),
    }
}

/// Changes, removes or repeats values anywhere in `json`.
pub(crate) fn change_json(json: &mut Value, random: &mut Random) {
    for _ in 0..1 + random.below(3) {
        let mut value = &mut *json;
        loop {
            let count = match value {
                Value::Object(map) => map.len(),
                Value::Array(list) => list.len(),
                _ => 0,
            };
            if count == 0 || random.below(24) == 0 {
                let other = other(random, value);
                break *value = other;
            }
            let index = random.below(count);
            value = match value {
                Value::Object(map) if random.below(16) == 0 => {
                    let key = map.keys().nth(index).expect("counted").clone();
                    break drop(map.remove(&key));
                }
                // What is nested would grow beyond all bounds by itself.
                Value::Array(list) if !list[index].is_array() && random.below(16) == 0 => {
                    let again = list[index].clone();
                    break list.resize(list.len() + random.below(4000), again);
                }
                Value::Object(map) => map.values_mut().nth(index).expect("counted"),
                Value::Array(list) => &mut list[index],
                _ => unreachable!("it has others within"),
            };
        }
    }
}

/// Changes some bytes, or some eight that may be a number.
pub(crate) fn change_bytes(bytes: &mut [u8], random: &mut Random) {
    for _ in 0..1 + random.below(4) {
        let at = random.below(bytes.len());
        let number = NUMBERS[random.below(NUMBERS.len())].to_le_bytes();
        match bytes[at..].first_chunk_mut() {
            Some(place) if random.below(3) == 0 => *place = number,
            _ => bytes[at] = random.next() as u8,
        }
    }
}
