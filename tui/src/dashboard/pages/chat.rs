//! The chat page: conversations, their messages, and the title of the prompt.

pub(in super::super) mod messages;

use ratatui::{
    layout::{Constraint, Layout, Rect},
    text::{Line, Span},
};
use sluice_shared::units;

use super::super::{
    chat::{Conversation, Speaker},
    hit_areas::HitTarget,
    screen::{Screen, ScreenShape},
    state::DashboardState,
};
use crate::{
    paint::Role,
    text::{clip, width},
};

/// Width of the list of conversations with its frame.
const LIST_COLUMNS: u16 = 32;

/// Title of the prompt: conversation, context, options, model and system prompt.
pub(in super::super) fn prompt_title(state: &DashboardState) -> String {
    let chat = &state.chat;
    let turns = &chat.conversation().turns;
    let answers = turns.len() / 2;
    let mut words = vec!["Prompt".to_owned()];
    words.push(match answers {
        0 => "new conversation".to_owned(),
        1 => format!("conversation {}, 1 answer", chat.open + 1),
        count => format!("conversation {}, {count} answers", chat.open + 1),
    });
    words.extend(context_words(state));
    let waiting = chat.waiting_here().count();
    if waiting > 0 {
        words.push(format!("{waiting} waiting"));
    }
    let flags = state.options.flags();
    words.push(flags.unwrap_or_else(|| "the daemon's defaults".to_owned()));
    let model = state.present().and_then(|now| now.model.as_ref());
    words.extend(model.map(|model| model.name.clone()));
    words.push(match state.options.system() {
        Some(text) => format!("system \"{text}\""),
        None => "system prompt: the model's own, if any".to_owned(),
    });
    words.join(" · ")
}

/// Positions of an answer whose length is not set.
const LENGTH: u32 = 128;

/// The share of the context that the open conversation takes, and whether another answer fits; `None` where it is not known.
fn context_words(state: &DashboardState) -> Option<String> {
    let limit = state.context_length()?;
    let last = state.chat.conversation().turns.last();
    let origin = last.and_then(|turn| turn.origin.as_ref());
    let used = match last {
        None => 0,
        Some(_) => origin?.context?,
    };
    let length = state.options.value("length");
    let length = length.and_then(|length| length.parse().ok());
    let needed = used.saturating_add(length.unwrap_or(LENGTH));
    let more = if used > 0 && needed > limit {
        ", nearly full"
    } else {
        ""
    };
    Some(format!(
        "context {} of {}{more}",
        units::count(used.into()),
        units::count(limit.into())
    ))
}

pub(in super::super) fn draw(screen: &mut Screen<'_, '_>, area: Rect) {
    match screen.shape {
        ScreenShape::Wide => {
            let [list, rest] =
                Layout::horizontal([Constraint::Length(LIST_COLUMNS), Constraint::Min(0)])
                    .areas(area);
            draw_list(screen, list);
            let title = title(screen.state, screen.state.chat.conversation());
            messages::draw(screen, rest, &title);
        }
        ScreenShape::Tall | ScreenShape::Small => {
            let chat = &screen.state.chat;
            let title = title(screen.state, chat.conversation());
            let before = if chat.open > 0 { "◂ " } else { "" };
            let count = chat.conversations.len();
            let after = if chat.open + 1 < count { " ▸" } else { "" };
            let words = match count {
                1 => title,
                _ => {
                    let number = format!("{before}{} of {count}: ", chat.open + 1);
                    let room = usize::from(area.width).saturating_sub(6 + width(&number));
                    format!("{number}{}{after}", clip(&title, room))
                }
            };
            messages::draw(screen, area, &words);
        }
    }
}

fn title(state: &DashboardState, conversation: &Conversation) -> String {
    let title = conversation.title();
    title.unwrap_or_else(|| match state.chat.is_asked_for(conversation) {
        true => "its first answer is on its way".to_owned(),
        false => "a new conversation".to_owned(),
    })
}

fn draw_list(screen: &mut Screen<'_, '_>, area: Rect) {
    let state = screen.state;
    let all = &state.chat.conversations;
    let inner = screen.pane(area, &format!("Conversations, {}", all.len()), false);
    let columns = usize::from(inner.width);
    let rows = usize::from(inner.height).max(1);
    let first = (state.chat.open + 1).saturating_sub(rows);
    let shown = all.iter().enumerate().skip(first).take(rows);
    for ((index, conversation), y) in shown.zip(inner.y..) {
        let place = Rect::new(inner.x, y, inner.width, 1);
        let is_open = index == state.chat.open;
        let mark = if is_open { "▸ " } else { "  " };
        let asks = state.chat.is_asked_for(conversation);
        let runs = if asks { "… " } else { "" };
        let role = match (is_open, conversation.turns.is_empty()) {
            (true, _) => Role::Selected,
            (false, true) => Role::Dim,
            (false, false) => Role::Committed,
        };
        let answers = conversation.turns.iter();
        let answers = answers.filter(|turn| turn.speaker == Speaker::Assistant);
        let count = format!(" {}", answers.count());
        let room = columns.saturating_sub(2 + width(runs) + count.len());
        let words = clip(&title(state, conversation), room);
        let line = Line::from(vec![
            Span::styled(format!("{mark}{runs}{words}"), screen.style(role)),
            Span::styled(count, screen.style(Role::Dim)),
        ]);
        screen.frame.render_widget(line, place);
        screen.hit_area(place, HitTarget::Conversation(index));
    }
}
