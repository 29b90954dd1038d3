//! Requests against the embedded model's tokenizer.

use std::sync::{Arc, Weak};

use sluice_checkpoint::{
    RecommendedSettings,
    family::{BlockDiffusion, MaskToken},
};
use sluice_engine::{LoadedModel, ModelId, model::ModelInfo};
use sluice_proto::v1;
use sluice_shared::level::Level;
use sluice_tokenizer::{Patience, Tokenizer};
use sluice_weights::LayerKind;

use super::*;
use crate::model_name::ModelName;

pub(super) const CONTEXT: usize = 200;

pub(crate) fn serving(with_text: bool) -> ServingModel {
    let text = Tokenizer::new(
        include_bytes!("../../model/tokenizer.json"),
        Some(include_bytes!("../../model/tokenizer_config.json")),
    );
    let info = ModelInfo {
        family: "llada",
        parameters: 1,
        weight_bytes: 4,
        formats: Vec::new(),
        layer_kind: LayerKind::Attention,
        inference: None,
        sentences: None,
        state: None,
        layers: 1,
        hidden_size: 1,
        attention_heads: 1,
        kv_heads: 1,
        head_dim: 1,
        intermediate_size: 1,
        vocab_size: 1 << 20,
        padded_vocab_size: 1 << 20,
        context_length: CONTEXT,
        mask: Some(MaskToken {
            token_id: Some(0),
            shifted: false,
            blocks: None,
            reserved: None,
        }),
        eos_token_ids: vec![1],
        bos_token_id: None,
        has_prior: false,
    };
    let loaded = LoadedModel {
        id: ModelId(1),
        info,
        tokenizer: with_text.then(|| Arc::new(text.unwrap())),
        recommended: RecommendedSettings::default(),
    };
    ServingModel::new(ModelName::embedded(), Arc::new(loaded), Weak::new())
}

fn tokens(count: usize) -> v1::GenerateRequest {
    let ids = vec![5; count];
    v1::GenerateRequest {
        input: Some(v1::generate_request::Input::Tokens(v1::TokenIds { ids })),
        ..Default::default()
    }
}

fn prepared(request: v1::GenerateRequest) -> Result<Generate, Failure> {
    generate(request, &serving(true)).map(|prepared| prepared.work)
}

fn generate(
    request: v1::GenerateRequest,
    serving: &ServingModel,
) -> Result<PreparedGeneration, Failure> {
    let checked = Generation::try_from(request).unwrap();
    generation(
        GenerationRequest {
            asked: checked,
            state: StateOptions::default(),
            recalled: None,
        },
        (serving, &Patience::default()),
        &ModelTable::default(),
        RequestDefaults {
            preset: Preset::Fast,
            limits: None,
        },
        |_| false,
    )
}

/// What a request comes to where the defaults are those for small memory, and what is told of its limits.
fn small(request: v1::GenerateRequest, serving: &ServingModel) -> (Generate, Vec<String>) {
    let defaults = RequestDefaults {
        preset: Preset::Exact,
        limits: Level::Aggressive.advised_limits(),
    };
    let prepared = generation(
        GenerationRequest {
            asked: Generation::try_from(request).unwrap(),
            state: StateOptions::default(),
            recalled: None,
        },
        (serving, &Patience::default()),
        &ModelTable::default(),
        defaults,
        |_| false,
    )
    .unwrap();
    let of_small = |setting: &&v1::ResolvedSetting| setting.origin == "small_memory";
    let told = prepared.settings.iter().filter(of_small);
    let told = told.map(|setting| format!("{} {}", setting.name, setting.value));
    (prepared.work, told.collect())
}

fn edit(text: &str, span: std::ops::Range<usize>) -> v1::GenerateRequest {
    v1::GenerateRequest {
        input: Some(v1::generate_request::Input::Edit(v1::TextEdit {
            text: text.to_owned(),
            span_start_bytes: span.start as u32,
            span_end_bytes: span.end as u32,
            ..Default::default()
        })),
        ..Default::default()
    }
}

#[test]
fn defaults_become_figures() {
    let work = prepared(tokens(10)).unwrap();
    assert_eq!(work.canvas, vec![CanvasSlot::Masked; LENGTH_DEFAULT]);
    assert_eq!((work.block_length, work.steps), (32, 128));
    // What the context leaves.
    let work = prepared(tokens(190)).unwrap();
    assert_eq!(
        (work.canvas.len(), work.block_length, work.steps),
        (10, 10, 10)
    );
    // Each draws its own.
    assert_ne!(prepared(tokens(1)).unwrap().seed, work.seed);
}

#[test]
fn the_defaults_for_small_memory_are_those_of_requests_that_say_nothing() {
    let serving = serving(true);
    let figures = |work: &Generate| (work.canvas.len(), work.block_length, work.steps);
    let (work, told) = small(tokens(10), &serving);
    assert_eq!(figures(&work), (64, 32, 64));
    assert_eq!(told, ["block_length 32", "length 64", "steps 64"]);
    // What a request says holds; a longer text is written in as many steps.
    let mut request = tokens(10);
    request.length = Some(128);
    let (work, told) = small(request, &serving);
    assert_eq!(figures(&work), (128, 32, 64));
    assert_eq!(told, ["block_length 32", "steps 64"]);
    let mut request = tokens(10);
    request.length = Some(100);
    request.block_length = Some(50);
    request.diffusion_mut().steps = Some(100);
    let (work, told) = small(request, &serving);
    assert_eq!(figures(&work), (100, 50, 100));
    assert!(told.is_empty(), "{told:?}");
    // The limits are about masks that are filled together.
    let mut causal = serving;
    Arc::get_mut(&mut causal.loaded).unwrap().info.mask = None;
    let (work, told) = small(tokens(10), &causal);
    assert_eq!(work.canvas.len(), LENGTH_DEFAULT);
    assert!(told.is_empty(), "{told:?}");
}

#[test]
fn a_prompt_without_room_is_refused_with_the_figures() {
    let message = prepared(tokens(CONTEXT)).unwrap_err().to_string();
    assert_eq!(
        message,
        "a prompt of 200 tokens and a length of 1 exceed the model's context length of 200"
    );
    let mut request = tokens(1);
    request.length = Some(u32::MAX);
    let message = prepared(request).unwrap_err().to_string();
    assert!(message.contains("a length of 4294967295"), "{message}");
}

#[test]
fn pinned_text_is_tokenized_and_counts_no_steps() {
    let mut request = tokens(3);
    request.length = Some(20);
    request.diffusion_mut().pins = vec![v1::CanvasPin {
        position: 4,
        content: Some(v1::canvas_pin::Content::Text("the end".to_owned())),
        anywhere: false,
    }];
    let work = prepared(request).unwrap();
    // A word behind others stands apart from them.
    let pinned = serving(true)
        .tokenizer()
        .unwrap()
        .encode(" the end")
        .unwrap();
    assert_eq!(work.canvas[4], CanvasSlot::Pinned(pinned[0]));
    assert_eq!(work.steps, 20 - pinned.len());
}

#[test]
fn a_text_that_may_stand_anywhere_waits_for_its_place() {
    let anywhere = |text: &str| v1::CanvasPin {
        content: Some(v1::canvas_pin::Content::Text(text.to_owned())),
        anywhere: true,
        ..Default::default()
    };
    let mut request = tokens(3);
    request.length = Some(20);
    request.diffusion_mut().pins = vec![anywhere("the end"), anywhere("fox")];
    let work = prepared(request.clone()).unwrap();
    assert_eq!(work.canvas, vec![CanvasSlot::Masked; 20]);
    let serving = serving(true);
    let ids = |text: &str| serving.tokenizer().unwrap().encode(text).unwrap();
    // Each is a choice of its own, a word apart from what will stand before it.
    let expected = [" the end", " fox"].map(|text| AnywherePins {
        texts: vec![ids(text)],
        most: 1,
    });
    assert_eq!(work.anywhere, expected);
    let pinned = ids(" the end").len() + ids(" fox").len();
    assert_eq!(work.steps, 20 - pinned);
    request.length = Some(pinned as u32 - 1);
    let message = prepared(request).unwrap_err().to_string();
    let expected = format!(
        "diffusion.pins: texts that may stand anywhere have {pinned} tokens, and {} positions are free",
        pinned - 1
    );
    assert_eq!(message, expected);
}

#[test]
fn an_edit_keeps_all_but_its_span() {
    let text = "Once there was a red fox who sang.";
    let span = 17..20;
    let work = prepared(edit(text, span.clone())).unwrap();
    assert!(work.prompt.is_empty());
    let serving = serving(true);
    let tokens = serving
        .tokenizer()
        .unwrap()
        .encode_with_spans(text)
        .unwrap();
    assert_eq!(work.canvas.len(), tokens.len());
    for (slot, (id, bytes)) in work.canvas.iter().zip(&tokens) {
        let touched = bytes.start < span.end && bytes.end > span.start;
        let expected = if touched {
            CanvasSlot::Masked
        } else {
            CanvasSlot::Pinned(*id)
        };
        assert_eq!(*slot, expected, "{bytes:?}");
    }
    assert!(work.canvas.contains(&CanvasSlot::Masked));
    assert_eq!(work.eos, EosPolicy::Suppress, "the rest would be dropped");
}

#[test]
fn an_edit_of_nothing_is_refused() {
    let mut request = edit("", 0..0);
    if let Some(v1::generate_request::Input::Edit(edit)) = &mut request.input {
        edit.span_tokens = Some(4);
    }
    let message = prepared(request).unwrap_err().to_string();
    assert_eq!(message, "edit.text: the text to edit is empty");
}

#[test]
fn text_needs_a_tokenizer_and_ids_do_not() {
    let plain = serving(false);
    let error = generate(edit("text", 0..2), &plain).unwrap_err();
    assert!(matches!(error, Failure::NoTokenizer { .. }));
    assert!(generate(tokens(2), &plain).is_ok());
}

#[test]
fn too_much_is_refused_before_it_is_tokenized() {
    let text = "x".repeat(TEXT_BYTES_MAX + 1);
    let message = prepared(edit(&text, 0..2)).unwrap_err().to_string();
    // The context of 200 tokens holds less than that, however long its tokens are.
    assert_eq!(
        message,
        "the request has 1048577 bytes of text; the limit is 6400"
    );
    let message = prepared(tokens(IDS_MAX + 1)).unwrap_err().to_string();
    assert!(message.contains("1048577 ids"), "{message}");
}

/// A model that has this in the place of its mask.
fn with_mask(mask: Option<MaskToken>) -> ServingModel {
    let mut serving = serving(true);
    let mut info = serving.loaded.info.clone();
    info.mask = mask;
    serving.loaded = Arc::new(LoadedModel {
        id: ModelId(1),
        info,
        tokenizer: serving.loaded.tokenizer.clone(),
        recommended: RecommendedSettings::default(),
    });
    serving
}

#[test]
fn what_a_model_was_trained_with_goes_into_its_requests() {
    let plain = serving(true).loaded.info.mask.unwrap();
    let padded = with_mask(Some(MaskToken {
        reserved: Some(9),
        ..plain
    }));
    let prepared = |request, model: &_| generate(request, model).unwrap().work;
    let mut request = tokens(150);
    let work = prepared(request.clone(), &padded);
    // As much as the context has room for, with what is reserved.
    assert_eq!((work.reserved, work.canvas.len()), (Some(9), 49));
    assert_eq!(prepared(request.clone(), &serving(true)).canvas.len(), 50);
    request
        .diffusion_mut()
        .set_canvas_growth(v1::CanvasGrowth::Append);
    assert_eq!(prepared(request, &padded).reserved, None);
    let causal = with_mask(Some(MaskToken {
        blocks: Some(BlockDiffusion {
            length: 32,
            filled_together: 32,
            causal_attention_before: true,
        }),
        ..plain
    }));
    let mut request = tokens(3);
    let exact = v1::DecodingPreset::Exact;
    request.diffusion_mut().set_preset(exact);
    let work = prepared(request, &causal);
    assert!(work.causal_attention_before);
    assert_eq!(
        (work.policy.name(), work.block_length),
        ("autoregressive", 32)
    );
}

#[test]
fn a_causal_model_knows_no_preset() {
    let causal = with_mask(None);
    let with = |dial: v1::DecodingPreset| {
        let mut request = tokens(2);
        request.diffusion_mut().set_preset(dial);
        generate(request, &causal)
    };
    // The daemon's own is for other models.
    for dial in [v1::DecodingPreset::Unspecified, v1::DecodingPreset::Exact] {
        let PreparedGeneration {
            work, preset: dial, ..
        } = with(dial).unwrap();
        assert!(dial.is_none() && work.decoding.is_exact() && work.policy.info().exact);
    }
    for dial in [v1::DecodingPreset::Fast, v1::DecodingPreset::Auto] {
        let message = with(dial).unwrap_err().to_string();
        assert!(message.contains("diffusion.preset"), "{message}");
    }
}

#[test]
fn the_models_own_instructions_come_before_a_conversation_without_any() {
    let serving = serving(true);
    let with = |system: Option<&str>, roles: &[v1::ChatRole]| {
        let message = |role: &v1::ChatRole| v1::ChatMessage {
            role: (*role).into(),
            content: "Be kind.".to_owned(),
            ..Default::default()
        };
        let chat = v1::Chat {
            messages: roles.iter().map(message).collect(),
            ..Default::default()
        };
        let request = v1::GenerateRequest {
            input: Some(v1::generate_request::Input::Chat(chat)),
            length: Some(8),
            ..Default::default()
        };
        let table = ModelTable {
            system: system.map(str::to_owned),
            ..ModelTable::default()
        };
        let checked = Generation::try_from(request).unwrap();
        let prepared = generation(
            GenerationRequest {
                asked: checked,
                state: StateOptions::default(),
                recalled: None,
            },
            (&serving, &Patience::default()),
            &table,
            RequestDefaults::default(),
            |_| false,
        )
        .unwrap();
        let told = prepared.settings.iter().any(|told| told.name == "system");
        (prepared.work.prompt, told)
    };
    let (given, is_told) = with(None, &[v1::ChatRole::System, v1::ChatRole::User]);
    assert!(!is_told);
    assert_eq!(
        with(Some("Be kind."), &[v1::ChatRole::User]),
        (given.clone(), true)
    );
    // The request's own go before them.
    assert_eq!(
        with(
            Some("Be rude."),
            &[v1::ChatRole::System, v1::ChatRole::User]
        ),
        (given, false)
    );
}

/// A request for memory with so many names of it pinned, for which this was found.
fn with_names(
    serving: &ServingModel,
    names: u32,
    text: &str,
    change: impl FnOnce(&mut v1::GenerateRequest),
) -> Result<PreparedGeneration, Failure> {
    let message = v1::ChatMessage {
        role: v1::ChatRole::User.into(),
        content: "Who went to Plagwitz?".to_owned(),
        ..Default::default()
    };
    let mut request = v1::GenerateRequest {
        input: Some(v1::generate_request::Input::Chat(v1::Chat {
            messages: vec![message],
            ..Default::default()
        })),
        length: Some(40),
        memory: Some(v1::MemoryOptions {
            pinned_names: names,
            ..Default::default()
        }),
        ..Default::default()
    };
    request
        .diffusion_mut()
        .set_preset(v1::DecodingPreset::Exact);
    change(&mut request);
    let hit = v1::MemoryHit {
        piece: Some(v1::MemoryPiece {
            text: text.to_owned(),
            ..Default::default()
        }),
        ..Default::default()
    };
    generation(
        GenerationRequest {
            asked: Generation::try_from(request).unwrap(),
            state: StateOptions::default(),
            recalled: Some(Recalled {
                hits: vec![hit],
                ..Recalled::default()
            }),
        },
        (serving, &Patience::default()),
        &ModelTable::default(),
        RequestDefaults::default(),
        |_| false,
    )
}

#[test]
fn names_of_what_is_remembered_may_stand_anywhere_where_they_are_asked_for() {
    let serving = serving(true);
    const TEXT: &str = "So Mia and Tom went to Plagwitz.";
    let ids = |text: &str| serving.tokenizer().unwrap().encode(text).unwrap();
    let none = with_names(&serving, 0, TEXT, |_| {}).unwrap();
    assert!(none.work.anywhere.is_empty() && none.memory.unwrap().names.is_empty());
    let some = with_names(&serving, 2, TEXT, |request| {
        request.diffusion_mut().pins = vec![v1::CanvasPin {
            content: Some(v1::canvas_pin::Content::Text("lake".to_owned())),
            anywhere: true,
            ..Default::default()
        }];
    })
    .unwrap();
    // What the user has said is no news.
    assert_eq!(some.memory.unwrap().names, ["Mia", "Tom"]);
    assert_eq!(
        some.work.anywhere,
        [
            AnywherePins {
                texts: vec![ids(" lake")],
                most: 1
            },
            AnywherePins {
                texts: vec![ids(" Mia"), ids(" Tom")],
                most: 2
            }
        ]
    );
    assert!(some.warnings.is_empty());
    let nameless = with_names(&serving, 2, "the pool is open", |_| {}).unwrap();
    assert!(nameless.work.anywhere.is_empty());
    assert!(nameless.warnings[0].contains("none is pinned"));
}

#[test]
fn no_more_names_are_looked_for_than_an_engine_takes() {
    let serving = serving(true);
    let patience = Patience::default();
    let mut texts = TextEncoder::new(&serving, &patience);
    let few = ["Zzxqzzxqzzxqzzxqzzxq".to_owned(), "Mia".to_owned()];
    let (names, ids) = names_to_pin(&mut texts, few.to_vec(), &[]).unwrap();
    // One that is long is left out.
    assert_eq!((names, ids.len()), (vec!["Mia".to_owned()], 1));
    let same = vec!["Mia".to_owned(); 40];
    let (names, _) = names_to_pin(&mut texts, same.clone(), &[]).unwrap();
    assert_eq!(names.len(), NAMES_MAX);
    let beside = vec![
        AnywherePins {
            texts: vec![vec![5]],
            most: 1
        };
        ANYWHERE_TEXTS_MAX - 2
    ];
    assert_eq!(
        names_to_pin(&mut texts, same.clone(), &beside)
            .unwrap()
            .0
            .len(),
        2
    );
    let crowded = AnywherePins {
        texts: vec![(1_000..1_000 + ANYWHERE_TOKENS_MAX as u32).collect()],
        most: 1,
    };
    assert!(
        names_to_pin(&mut texts, same, &[crowded])
            .unwrap()
            .0
            .is_empty()
    );
}

#[test]
fn names_are_refused_where_no_place_is_looked_for() {
    let text = "So Mia and Tom went.";
    let refused = |serving: &ServingModel, change: &dyn Fn(&mut v1::GenerateRequest)| {
        let error = with_names(serving, 1, text, |request| change(request)).unwrap_err();
        error.to_string()
    };
    let plain = serving(true).loaded.info.mask.unwrap();
    let unsaid = |request: &mut v1::GenerateRequest| request.decoding = None;
    let told = refused(&with_mask(None), &unsaid);
    assert!(
        told.starts_with("memory.pinned_names: only masked diffusion models"),
        "{told}"
    );
    let of_blocks = with_mask(Some(MaskToken {
        blocks: Some(BlockDiffusion {
            length: 32,
            filled_together: 32,
            causal_attention_before: false,
        }),
        ..plain
    }));
    assert_eq!(
        refused(&of_blocks, &unsaid),
        "memory.pinned_names: a block diffusion model sees nothing behind its open block"
    );
    let growing = |request: &mut v1::GenerateRequest| {
        request
            .diffusion_mut()
            .set_canvas_growth(v1::CanvasGrowth::Append);
    };
    let told = refused(&serving(true), &growing);
    assert!(
        told.starts_with("memory.pinned_names: a canvas that grows"),
        "{told}"
    );
}
