//! An engine with a model, and what tests ask of it.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, mpsc},
};

use sluice_checkpoint::Source;
use sluice_engine::{
    Engine, EngineOptions, Event, Generate, LoadedModel, Outcome, PlanSettings, ShareKey, Work,
    event::{FinishReason, GenerationResult, PassReport},
};
use sluice_shared::decoding::Decoding;

use crate::checkpoints::{demonstration, fixture};

pub(crate) struct World {
    pub(crate) engine: Arc<Engine>,
    pub(crate) model: Arc<LoadedModel>,
    /// Whose each request is, by its place.
    pub(crate) share: fn(usize) -> ShareKey,
}

impl World {
    pub(crate) fn new(folder: &Path, parallel: usize, settings: PlanSettings) -> Self {
        let engine = Engine::start(EngineOptions {
            threads: 2,
            parallel,
            queue_max: 64,
            ..EngineOptions::default()
        })
        .unwrap();
        let model = engine
            .load_now(Source::Folder(folder.to_owned()), settings)
            .unwrap();
        Self {
            engine: Arc::new(engine),
            model,
            share: |_| ShareKey::default(),
        }
    }

    pub(crate) fn diffusion(parallel: usize) -> Self {
        Self::new(&demonstration(), parallel, PlanSettings::default())
    }

    pub(crate) fn autoregressive(parallel: usize) -> Self {
        Self::new(&fixture("llama-tiny"), parallel, PlanSettings::default())
    }

    /// Submits all at once; what each came to, and its passes.
    pub(crate) fn run(&self, requests: &[Generate]) -> Vec<(GenerationResult, Vec<PassReport>)> {
        self.run_watched(requests, &|_, _| {})
    }

    /// The same; `watch` sees each pass with the request's place, on the engine's thread.
    pub(crate) fn run_watched(
        &self,
        requests: &[Generate],
        watch: &(impl Fn(usize, &PassReport) + Clone + Send + 'static),
    ) -> Vec<(GenerationResult, Vec<PassReport>)> {
        let (send, events) = mpsc::channel();
        // The others come in the first one's first pass, on whose end the engine's thread waits until all are submitted:
        // which pass each joins depends on no thread's speed.
        let (running, runs) = mpsc::channel::<()>();
        let (submitting, submitted) = mpsc::channel::<()>();
        let mut first = Some((running, submitted));
        for (index, request) in requests.iter().enumerate() {
            if index == 1 {
                let _ends_without_a_pass = runs.recv();
            }
            let (send, watch) = (send.clone(), watch.clone());
            let mut first = first.take();
            let sink = Box::new(move |event| {
                if let Event::Pass(report) = &event {
                    if let Some((running, submitted)) = first.take() {
                        drop(running);
                        let _ends_with_the_sender = submitted.recv();
                    }
                    watch(index, report);
                }
                drop(send.send((index, event)));
            });
            let work = Work::Generate(request.clone());
            let share = (self.share)(index);
            self.engine.submit(share, work, sink).unwrap();
        }
        drop((send, submitting));
        let mut passes: BTreeMap<usize, Vec<PassReport>> = BTreeMap::new();
        let mut results = BTreeMap::new();
        for (index, event) in events {
            match event {
                Event::Pass(report) => passes.entry(index).or_default().push(*report),
                Event::Finished(Ok(Outcome::Generated(generated))) => {
                    results.insert(index, generated);
                }
                Event::Finished(other) => panic!("{index}: {other:?}"),
                _ => {}
            }
        }
        let passes = |index| passes.get(&index).cloned().unwrap_or_default();
        results
            .into_iter()
            .map(|(index, generated)| (generated, passes(index)))
            .collect()
    }
}

/// What requests wrote, and why they ended.
pub(crate) fn texts(
    answers: &[(GenerationResult, Vec<PassReport>)],
) -> Vec<(Vec<u32>, FinishReason)> {
    let text = |(generated, _): &(GenerationResult, _)| {
        (generated.tokens.clone(), generated.finish_reason)
    };
    answers.iter().map(text).collect()
}

/// Requests that shared a pass, at most.
pub(crate) fn most_shared(answers: &[(GenerationResult, Vec<PassReport>)]) -> usize {
    let shared = |(_, passes): &(_, Vec<PassReport>)| {
        passes.iter().map(|pass| pass.cost.batch_requests).max()
    };
    answers.iter().filter_map(shared).max().unwrap_or(0)
}

/// What passes may leave out or try, in every combination that means something else.
pub(crate) fn ways() -> Vec<Decoding> {
    let ways = [
        ("prefix", None, "fixed", "none"),
        ("dual", Some(8), "fixed", "none"),
        ("vicinity:around=5,refresh=3", None, "fixed", "none"),
        ("dual:behind=8", Some(20), "fixed", "none"),
        ("dual:keep=0.5", Some(0), "fixed", "none"),
        ("none", Some(4), "fixed", "none"),
        ("none", None, "append", "none"),
        ("prefix", None, "append", "none"),
        ("none", None, "insert", "none"),
        ("dual", Some(12), "insert", "none"),
        ("none", None, "fixed", "draft:branches=2"),
        ("none", Some(4), "fixed", "explore:branches=3"),
    ];
    let way = |(caching, window, growth, speculation): (&str, _, &str, &str)| Decoding {
        kv_cache: caching.parse().unwrap(),
        suffix_window: window,
        canvas_growth: growth.parse().unwrap(),
        speculation: speculation.parse().unwrap(),
    };
    ways.map(way).to_vec()
}
