//! Attention, against sums in `f64`.

use sluice_cuda::{ATTEND_QUERIES, AttentionArgs, AttentionSegment, AttentionTask, Gpu};
use sluice_formats::DType;

use super::{
    formats::Random,
    support::{Buffer, assert_close, elements, narrow, on_gpu},
};

/// Queries of a task.
struct Queries<'a> {
    start: u32,
    count: u32,
    /// Segments of keys.
    keys: &'a [(u32, u32)],
    /// The first one's own place, where each sees the keys up to its own.
    place: Option<u32>,
}

impl Queries<'_> {
    /// The keys that a query sees, with such a window.
    fn seen_by(&self, query: usize, window: Option<usize>) -> Vec<usize> {
        let own = self.place.map(|place| place as usize + query);
        let keys = self.keys.iter();
        let is_near = |key: usize, own: usize| window.is_none_or(|window| key + window > own);
        keys.flat_map(|&(start, len)| start as usize..(start + len) as usize)
            .filter(|&key| own.is_none_or(|own| key <= own && is_near(key, own)))
            .collect()
    }
}

/// Attention of all tasks, against sums in `f64`.
fn check_attend(
    gpu: &Gpu,
    random: &mut Random,
    number: DType,
    (heads, kv_heads, head_dim): (usize, usize, usize),
    tasks: &[Queries<'_>],
    window: Option<usize>,
) {
    // Fewer rows than keys, where these take turns.
    let (rows, keys) = (200, if window.is_some() { 103 } else { 210 });
    // Scores of some size, so that the largest is not always the first.
    let q: Vec<f32> = elements(random, number, rows * heads * head_dim)
        .into_iter()
        .map(|x| narrow(number, 3.0 * x))
        .collect();
    let k = elements(random, number, keys * kv_heads * head_dim);
    let v = elements(random, number, keys * kv_heads * head_dim);
    let segments: Vec<AttentionSegment> = tasks
        .iter()
        .flat_map(|task| task.keys)
        .map(|&(start, len)| AttentionSegment { start, len })
        .collect();
    let mut before = 0;
    let tasks_there: Vec<AttentionTask> = tasks
        .iter()
        .map(|task| {
            let segment_count = task.keys.len() as u32;
            before += segment_count;
            AttentionTask {
                query_start: task.start,
                query_count: task.count,
                segment_start: before - segment_count,
                segment_count,
                causal: task.place.is_some().into(),
                place: task.place.unwrap_or(0),
            }
        })
        .collect();
    let out = Buffer::new(gpu, q.len() * number.bytes());
    let (q_there, k_there, v_there) = (
        Buffer::of_elements(gpu, number, &q),
        Buffer::of_elements(gpu, number, &k),
        Buffer::of_elements(gpu, number, &v),
    );
    let (tasks_there, segments_there) = (Buffer::of(gpu, &tasks_there), Buffer::of(gpu, &segments));
    let attend = AttentionArgs {
        out: out.span(),
        q: q_there.span(),
        k: k_there.span(),
        v: v_there.span(),
        tasks: tasks_there.span(),
        task_count: tasks.len(),
        segments: segments_there.span(),
        heads,
        kv_heads,
        head_dim,
        scale: (head_dim as f32).sqrt().recip(),
        window,
    };
    gpu.attend(number, attend).unwrap();
    let found = out.read_elements(gpu, number);

    let tolerance = match number {
        DType::F32 => 1e-5,
        DType::F16 => 2e-3,
        DType::Bf16 => 1.2e-2,
    };
    let mut written = vec![false; rows];
    for task in tasks {
        for index in 0..task.count as usize {
            let query = task.start as usize + index;
            let seen = task.seen_by(index, window);
            written[query] = true;
            for head in 0..heads {
                let at = |key: usize| (key % keys * kv_heads + head * kv_heads / heads) * head_dim;
                let q = &q[(query * heads + head) * head_dim..][..head_dim];
                let weights: Vec<f64> = seen
                    .iter()
                    .map(|&key| {
                        let products = q.iter().zip(&k[at(key)..]);
                        let score: f64 = products.map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
                        (score / (head_dim as f64).sqrt()).exp()
                    })
                    .collect();
                let total: f64 = weights.iter().sum();
                for i in 0..head_dim {
                    let values = seen.iter().map(|&key| f64::from(v[at(key) + i]));
                    let sum: f64 = values.zip(&weights).map(|(value, w)| value * w).sum();
                    let expected = if seen.is_empty() { 0.0 } else { sum / total };
                    let found = found[(query * heads + head) * head_dim + i];
                    assert_close(found, expected, tolerance, || {
                        format!("{} {head_dim} at {query},{head},{i}", number.name())
                    });
                }
            }
        }
    }
    for (row, written) in written.into_iter().enumerate() {
        let row = &found[row * heads * head_dim..][..heads * head_dim];
        assert!(written || row.iter().all(|x| x.is_nan()), "rows of no task");
    }
}

/// Attention of these tasks in every dtype, for heads of every kernel.
fn check_tasks(seed: u64, tasks: &[Queries<'_>], window: Option<usize>) {
    on_gpu(|gpu| {
        let mut random = Random::new(seed);
        for number in DType::ALL {
            for shape in [
                (1, 1, 2),
                (4, 2, 10),
                (2, 2, 64),
                (3, 1, 66),
                (2, 1, 128),
                (2, 2, 130),
                (1, 1, 256),
                (2, 1, 258),
                (1, 1, 512),
            ] {
                check_attend(gpu, &mut random, number, shape, tasks, window);
            }
        }
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn attention() {
    let queries = |start, count, keys| Queries {
        start,
        count,
        keys,
        place: None,
    };
    let whole = ATTEND_QUERIES as u32;
    let tasks = [
        queries(0, whole, &[(0, 7), (50, 0), (60, 61)]),
        queries(whole, 1, &[(209, 1)]),
        queries(70, 33, &[(0, 0), (10, 32), (100, 64), (3, 1)]),
        queries(110, 17, &[]),
        queries(140, 60, &[(0, 210)]),
    ];
    check_tasks(10, &tasks, None);
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn attention_up_to_a_querys_own_place() {
    let queries = |start, count, keys, place| Queries {
        start,
        count,
        keys,
        place: Some(place),
    };
    let whole = ATTEND_QUERIES as u32;
    let tasks = [
        // A prompt's beginning, whose first query sees one key; its next part, which begins within a tile; its end.
        queries(0, whole, &[(0, 210)], 0),
        queries(whole, 40, &[(0, 210)], 75),
        queries(104, 20, &[(0, 210)], 190),
        // One alone, and a few that see a tile's end and the next one's beginning.
        queries(125, 1, &[(0, 133)], 127),
        queries(130, 3, &[(0, 133)], 30),
        // Keys behind gaps, some beyond what all or any of them see, and a task of which the first see nothing.
        queries(
            140,
            40,
            &[(0, 5), (20, 70), (100, 0), (110, 40), (160, 3)],
            95,
        ),
        queries(190, 10, &[(8, 30), (100, 2)], 4),
    ];
    check_tasks(11, &tasks, None);
}

/// Of keys that take turns in fewer rows, too.
#[test]
#[ignore = "on the stand-in: cargo ci"]
fn attention_within_a_window() {
    let queries = |start, count, keys, place| Queries {
        start,
        count,
        keys,
        place,
    };
    let whole = ATTEND_QUERIES as u32;
    let tasks = [
        // A text's beginning; its next part, whose window begins within a tile; one beyond the rows' end; one alone.
        queries(0, whole, &[(0, 64)], Some(0)),
        queries(whole, 20, &[(0, 100)], Some(64)),
        queries(90, 40, &[(0, 300)], Some(190)),
        queries(135, 1, &[(0, 1_000_000)], Some(999_999)),
        // Windows that reach over a gap, of which some queries see nothing, and queries without a place.
        queries(140, 40, &[(10, 7), (50, 30)], Some(20)),
        queries(190, 5, &[(90, 13)], None),
    ];
    for window in [1, 16, 39] {
        check_tasks(12, &tasks, Some(window));
    }
}
