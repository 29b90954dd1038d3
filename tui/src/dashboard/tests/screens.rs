//! Pictures of the view, and what is said in its styles.

use ratatui::style::{Color, Modifier};
use sluice_proto::v1::{GenerationNotice, GpuUnavailable};

use super::*;
use crate::paint::Role;

#[test]
fn connecting() {
    pictures("connecting", &state());
}

#[test]
fn idle_with_a_model() {
    pictures("idle", &idle());
}

#[test]
fn a_request_in_its_second_block() {
    pictures("generating", &busy());
}

/// Five minutes of snapshots, with a load that comes and goes.
fn watched() -> DashboardState {
    let mut state = busy();
    for at in 0..600_u64 {
        let Event::Snapshot(mut snapshot) = snapshot(vec![summary(3, OperationState::Running)])
        else {
            unreachable!("that is what it is");
        };
        let wave = (at / 10) % 12;
        if let Some(device) = &mut snapshot.device {
            device.used_bytes = (600 + 40 * wave) << 20;
        }
        let tokens = snapshot.totals.as_mut().expect("given");
        tokens.committed_tokens = at * (at % 40) / 4 + at * 20;
        snapshot.passes.as_mut().expect("given").streamed_bytes = at << 29;
        update(&mut state, Event::Snapshot(snapshot), at * 500);
    }
    state
}

#[test]
fn what_the_process_has_beyond_what_is_held_is_said() {
    let mut state = idle();
    let Event::Snapshot(mut snapshot) = snapshot(Vec::new()) else {
        unreachable!("that is what it is");
    };
    let host = snapshot.host.as_mut().expect("given");
    host.resident_other_bytes = Some(24 << 20);
    feed(&mut state, Event::Snapshot(snapshot));
    press(&mut state, KeyCode::Esc);
    press(&mut state, KeyCode::Char('2'));
    let screen = shown(&state, SIZES[0]);
    assert!(screen.contains("24.0 MiB outside the ledger"), "{screen}");
}

#[test]
fn state_and_cross_attention_stand_in_line_with_the_rest() {
    let mut state = idle();
    let Event::Snapshot(mut snapshot) = snapshot(Vec::new()) else {
        unreachable!("that is what it is");
    };
    let device = snapshot.device.as_mut().expect("given");
    device.memory.push(MemoryUse {
        kind: MemoryKind::State.into(),
        bytes: 48 << 20,
        peak_bytes: 48 << 20,
    });
    for layer in &mut snapshot.layers {
        if let Some(attention) = layer.groups.first().copied()
            && attention.kind() == WeightGroupKind::Attention
        {
            let kind = WeightGroupKind::CrossAttention.into();
            layer
                .groups
                .insert(1, WeightGroupStatus { kind, ..attention });
        }
    }
    feed(&mut state, Event::Snapshot(snapshot));
    press(&mut state, KeyCode::Esc);
    press(&mut state, KeyCode::Char('2'));
    press(&mut state, KeyCode::Char('l'));
    pictures("memory_latents", &state);
}

#[test]
fn every_part_of_a_mixture_stands_in_a_row() {
    use WeightGroupKind::{
        Attention, Down, Expert, GateUp, LayerEnd, Router, SelfConditioning, SharedExpert,
    };

    let mut state = idle();
    let Event::Snapshot(mut snapshot) = snapshot(Vec::new()) else {
        unreachable!("that is what it is");
    };
    for layer in &mut snapshot.layers {
        let like = layer.groups[0];
        let group = |kind: WeightGroupKind| WeightGroupStatus {
            kind: kind.into(),
            ..like
        };
        match layer.name.as_str() {
            "embedding" => layer.groups.push(group(SelfConditioning)),
            "lm_head" => {}
            _ => {
                let parts = [Attention, GateUp, Down, Router, SharedExpert, LayerEnd];
                layer.groups = parts.map(group).into();
                let experts = |count: u32, is_in_flight| WeightGroupStatus {
                    bytes: u64::from(count) << 20,
                    tier: Tier::Host.into(),
                    count: Some(count),
                    is_in_flight,
                    ..group(Expert)
                };
                layer.groups.extend([experts(40, true), experts(88, false)]);
            }
        }
    }
    feed(&mut state, Event::Snapshot(snapshot));
    press(&mut state, KeyCode::Esc);
    press(&mut state, KeyCode::Char('2'));
    press(&mut state, KeyCode::Char('l'));
    pictures("memory_mixture", &state);
}

#[test]
fn five_minutes_of_memory_and_the_layers() {
    let mut state = watched();
    press(&mut state, KeyCode::Esc);
    press(&mut state, KeyCode::Char('2'));
    for _ in 0..4 {
        press(&mut state, KeyCode::Right);
    }
    pictures("memory", &state);
    let screen = shown(&state, SIZES[0]);
    assert!(
        screen.contains("layer 3: attention 24.0 MiB q8_0 host"),
        "{screen}"
    );
    assert!(screen.contains("down 24.0 MiB q8_0 in flight"), "{screen}");
}

#[test]
fn graphs_fall_back_to_blocks_and_to_ascii() {
    let mut state = watched();
    press(&mut state, KeyCode::Esc);
    press(&mut state, KeyCode::Char('2'));
    let is_braille = |c: char| ('\u{2801}'..='\u{28ff}').contains(&c);
    assert!(shown(&state, SIZES[0]).contains(is_braille));
    state.paint.glyphs = Glyphs::Blocks;
    let blocks = shown(&state, SIZES[0]);
    assert!(
        !blocks.contains(is_braille) && blocks.contains('█'),
        "{blocks}"
    );
    state.paint.glyphs = Glyphs::Ascii;
    pictures("memory_ascii", &state);
    assert!(shown(&state, SIZES[0]).is_ascii());
}

#[test]
fn everything_at_a_glance_after_some_minutes() {
    pictures("overview", &watched());
}

#[test]
fn a_gpu_that_computes() {
    pictures("gpu", &on_gpu(|_| {}));
}

#[test]
fn a_gpu_of_which_little_is_known_shows_no_zeros() {
    let state = on_gpu(|device| {
        device.free_bytes = None;
        device
            .memory
            .retain(|kind| kind.kind() != MemoryKind::Context);
        device.gpu = Some(GpuStatus {
            compute_dtype: Dtype::F16.into(),
            compute_capability: "7.5".into(),
            ..Default::default()
        });
    });
    pictures("gpu_unknown", &state);
}

#[test]
fn a_cpu_that_computes_for_want_of_a_gpu() {
    let state = on_gpu(|device| {
        device.kind = DeviceKind::Cpu.into();
        device.gpu = None;
        device.gpu_unavailable = Some(GpuUnavailable {
            reason: "NVIDIA's driver finds no GPU".into(),
            hint: "check that `nvidia-smi` lists the GPU, and that this user or service may open /dev/nvidia*".into(),
            is_fault: true,
        });
    });
    pictures("no_gpu", &state);
    let terminal = draw(&state, (120, 40));
    let buffer = terminal.backend().buffer();
    let row = (0..40).find(|y| {
        (1..8).all(|x| buffer[(x, *y)].symbol() == &"no GPU "[usize::from(x) - 1..usize::from(x)])
    });
    let cell = &buffer[(1, row.expect("it is said"))];
    assert_eq!((cell.fg, cell.modifier), (Color::Reset, Modifier::DIM));
}

#[test]
fn a_machine_without_a_gpu_is_not_reminded_of_it() {
    let state = on_gpu(|device| {
        device.kind = DeviceKind::Cpu.into();
        device.gpu = None;
        device.gpu_unavailable = Some(GpuUnavailable {
            reason: "cannot use NVIDIA's driver: there is none".into(),
            ..Default::default()
        });
    });
    for size in SIZES {
        let screen = shown(&state, size);
        assert!(
            !screen.contains("no GPU") && !screen.contains("NVIDIA"),
            "{screen}"
        );
    }
}

#[test]
fn the_memory_of_a_gpu_warns_by_colour_and_word() {
    for (free, role, word) in [
        (3 << 30, Role::Good, "50 %"),
        (1 << 30, Role::Warning, "83 % high"),
        (300 << 20, Role::Bad, "95 % very high"),
    ] {
        let state = on_gpu(|device| device.free_bytes = Some(free));
        let terminal = draw(&state, (120, 40));
        let buffer = terminal.backend().buffer();
        let row = |y: u16| {
            (0..120)
                .map(|x| buffer[(x, y)].symbol())
                .collect::<String>()
        };
        let y = (0..40).find(|y| row(*y).contains("memory   ━"));
        let y = y.unwrap_or_else(|| panic!("{}", terminal.backend()));
        assert!(row(y).contains(word), "{}", row(y));
        let style = state.paint.style(role);
        assert_eq!(Some(buffer[(10, y)].fg), style.fg, "{word}");
    }
}

#[test]
fn where_rows_are_short_details_go_before_the_level_does() {
    for (rows, kept) in [(32, "context"), (26, "memory"), (22, "37 % busy")] {
        let screen = draw(&on_gpu(|_| {}), (100, rows));
        let screen = screen.backend().to_string();
        for words in ["host", "NVIDIA", "cuda: 1.15 GiB", "level", "a pass", kept] {
            assert!(screen.contains(words), "{words} in {rows} rows: {screen}");
        }
    }
}

#[test]
fn a_lost_connection_keeps_what_was_known() {
    pictures("lost", &lost());
}

#[test]
fn a_silent_daemon_leaves_figures_that_are_told_to_be_old() {
    let mut state = busy();
    update(&mut state, Event::Tick, 4_000);
    pictures("stale", &state);
    let terminal = draw(&state, SIZES[1]);
    let cell = &terminal.backend().buffer()[(8, 0)];
    assert_eq!((cell.symbol(), cell.fg), ("s", Color::Yellow));
}

#[test]
fn what_went_wrong_stays_until_a_key_is_pressed() {
    let mut state = busy();
    let Event::Snapshot(mut failed) = snapshot(vec![]) else {
        unreachable!("that is what it is");
    };
    let model = failed.model.as_mut().expect("given");
    model.state = ModelState::Failed.into();
    model.error = "model.safetensors: its header names 12 bytes more than the file has".into();
    feed(&mut state, Event::Snapshot(failed));
    let refused = "the budget of 64.0 MiB is too small: at least 70.2 MiB are needed";
    feed(&mut state, Event::Failed(refused.into()));
    update(&mut state, Event::Tick, 2_000);
    pictures("error", &state);
    assert!(shown(&state, SIZES[2]).contains("70.2 MiB are needed"));
    update(&mut state, Event::Tick, 60_000);
    feed(&mut state, snapshot(vec![]));
    let terminal = draw(&state, SIZES[1]);
    let cell = &terminal.backend().buffer()[(0, 22)];
    assert_eq!((cell.symbol(), cell.fg), ("e", Color::Red));
    assert!(cell.modifier.contains(Modifier::BOLD));
    press(&mut state, KeyCode::Left);
    assert_eq!(state.message, None);
}

#[test]
fn who_finds_no_daemon_is_told_what_to_do() {
    let mut state = state();
    let event = Event::Lost {
        cause: "cannot reach sluiced at /run/sluice/sluice.sock: no such socket".into(),
        retry_ms: 4_000,
    };
    feed(&mut state, event);
    pictures("absent", &state);
    for size in SIZES {
        let screen = shown(&state, size);
        assert!(
            screen.contains("no daemon") && screen.contains("start it with"),
            "{screen}"
        );
    }
}

#[test]
fn at_a_middling_size_a_request_still_says_why_it_is_no_faster() {
    for size in [(80, 24), (100, 24), (40, 12)] {
        let screen = shown(&busy(), size);
        assert!(screen.contains("transfer-bound: 71 %"), "{screen}");
    }
}

#[test]
fn a_daemon_without_a_model_has_empty_pages() {
    let mut state = idle();
    let Event::Snapshot(mut bare) = snapshot(vec![]) else {
        unreachable!("that is what it is");
    };
    (bare.model, bare.plan, bare.passes) = (None, None, None);
    bare.layers.clear();
    feed(&mut state, Event::Snapshot(bare));
    press(&mut state, KeyCode::Esc);
    for (page, number) in Page::ALL.into_iter().zip('1'..) {
        press(&mut state, KeyCode::Char(number));
        pictures(&format!("empty_{}", page.name().to_lowercase()), &state);
    }
}

#[test]
fn levels_with_what_each_would_lead_to() {
    pictures("levels", &choosing());
}

#[test]
fn help_over_everything() {
    let mut state = idle();
    press(&mut state, KeyCode::Char('?'));
    pictures("help", &state);
    for _ in 0..999 {
        press(&mut state, KeyCode::Down);
    }
    let screen = shown(&state, (40, 12));
    assert!(
        screen.contains("find a key"),
        "the last keys can be reached: {screen}"
    );
    press(&mut state, KeyCode::Char('/'));
    write(&mut state, "suspend");
    let screen = shown(&state, (80, 24));
    assert!(
        screen.contains("Ctrl-Z") && !screen.contains("PgDn"),
        "{screen}"
    );
    press(&mut state, KeyCode::Enter);
    press(&mut state, KeyCode::Esc);
    assert_eq!(state.mode(), Mode::Prompt);
    write(&mut state, "why?");
    assert_eq!((state.mode(), state.prompt.value()), (Mode::Prompt, "why?"));
}

#[test]
fn a_screen_too_small_says_what_it_needs() {
    let terminal = draw(&idle(), (39, 10));
    let screen = terminal.backend().to_string();
    assert!(
        screen.contains("sluice needs 40x10, this is 39x10"),
        "{screen}"
    );
    for size in [(1, 1), (0, 0), (300, 3), (40, 10), (100, 20), (99, 20)] {
        draw(&busy(), size);
    }
}

#[test]
fn states_of_a_token_differ_in_style() {
    let style = |colour: bool, word: &str| {
        let mut state = busy();
        state.paint = Paint::new(Theme::Terminal, Glyphs::Braille, colour);
        let terminal = draw(&state, (120, 40));
        let buffer = terminal.backend().buffer().clone();
        // The legend has the same words, so the canvas's own row is looked for.
        let row = (0..40)
            .find(|y| {
                (0..120)
                    .map(|x| buffer[(x, *y)].symbol())
                    .collect::<String>()
                    .contains("Once upon")
            })
            .expect("the canvas is drawn");
        let text: Vec<&str> = (0..120).map(|x| buffer[(x, row)].symbol()).collect();
        let at = (0..120 - word.len())
            .find(|x| text[*x..*x + word.len()].concat() == word)
            .unwrap_or_else(|| panic!("{word} in {}", text.concat()));
        let cell = &buffer[(at as u16, row)];
        (cell.fg, cell.modifier)
    };
    assert_eq!(style(true, "upon"), (Color::Reset, Modifier::empty()));
    assert_eq!(
        style(true, "so"),
        (Color::Red, Modifier::BOLD | Modifier::UNDERLINED)
    );
    assert_eq!(
        style(true, "the"),
        (Color::Reset, Modifier::DIM | Modifier::ITALIC)
    );
    assert_eq!(style(true, "mill"), (Color::Cyan, Modifier::UNDERLINED));
    assert_eq!(
        style(false, "so"),
        (Color::Reset, Modifier::BOLD | Modifier::UNDERLINED)
    );
    assert_eq!(style(false, "mill"), (Color::Reset, Modifier::UNDERLINED));
}

#[test]
fn a_selection_and_a_loss_stand_out() {
    let mut state = busy();
    press(&mut state, KeyCode::Tab);
    let terminal = draw(&state, (120, 40));
    let buffer = terminal.backend().buffer();
    let mark = buffer.content().iter().find(|cell| cell.symbol() == "▸");
    let selected = Modifier::BOLD | Modifier::REVERSED;
    assert!(mark.expect("a selection").modifier.contains(selected));
    let terminal = draw(&lost(), (120, 40));
    let cell = &terminal.backend().buffer()[(8, 0)];
    assert_eq!((cell.symbol(), cell.fg), ("l", Color::Red));
    assert!(cell.modifier.contains(Modifier::BOLD));
}

#[test]
fn no_colour_means_none_anywhere() {
    for mut state in [state(), busy(), lost(), choosing()] {
        state.paint = Paint::new(Theme::Dark, Glyphs::Braille, false);
        let terminal = draw(&state, (120, 40));
        let cells = terminal.backend().buffer().content();
        assert!(
            cells
                .iter()
                .all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset)
        );
    }
}

#[test]
fn control_characters_never_reach_the_screen() {
    let mut state = busy();
    let notice = WireEvent::Notice(GenerationNotice {
        request_id: 3,
        text: "beware\x1b[2J\u{9b}".into(),
    });
    feed(&mut state, request(3, notice));
    feed(&mut state, Event::Paste("a\x1b[2Jb\r\nc".into()));
    for size in SIZES {
        let terminal = draw(&state, size);
        let cells = terminal.backend().buffer().content();
        let is_safe = |symbol: &str| !symbol.chars().any(char::is_control);
        assert!(cells.iter().all(|cell| is_safe(cell.symbol())));
    }
}
