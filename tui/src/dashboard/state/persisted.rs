//! What of the state is saved, and how it is restored.

use super::{
    super::{
        chat::{CONVERSATION_BYTES_MAX, CONVERSATIONS_MAX, Chat, Speaker, Turn},
        levels::FIDELITIES_MAX,
        options::RequestOptions,
        persist::{
            ChosenLooks, FixedLooks, PROMPT_BYTES_MAX, PersistedFidelity, PersistedState, VERSION,
        },
    },
    DashboardState, LineHistory,
};

impl PersistedState {
    /// The part of a state that is saved.
    #[must_use]
    pub fn of(state: &DashboardState) -> Self {
        // Every dashboard starts with a new conversation; saved, the empty ones would pile up.
        let all = state.chat.conversations.iter();
        let said = all.filter(|conversation| !conversation.turns.is_empty());
        let conversations = said.map(|conversation| conversation.turns.clone());
        Self {
            version: VERSION,
            conversations: conversations.collect(),
            prompts: short(&state.prompts.lines),
            commands: state.commands.lines.clone(),
            options: state.options.values(),
            theme: state
                .chosen_looks
                .theme
                .map(|theme| theme.name().to_owned()),
            glyphs: state
                .chosen_looks
                .glyphs
                .map(|glyphs| glyphs.name().to_owned()),
            mouse: state.chosen_looks.mouse,
            // JSON has no NaN or infinity: serde writes `null`, which would make the whole file unreadable.
            fidelity: (state.fidelity.iter())
                .filter(|figures| {
                    figures.mean_kl_nats.is_finite() && figures.top_agreement.is_finite()
                })
                .map(PersistedFidelity::from)
                .collect(),
        }
    }

    /// Restores what was saved into a state. What exceeds the bounds or is not understood is left out: the file may be edited by
    /// hand or come from another version.
    pub fn restore(self, state: &mut DashboardState, fixed: FixedLooks) {
        let mut conversations = self.conversations;
        let excess = conversations.len().saturating_sub(CONVERSATIONS_MAX);
        conversations.drain(..excess);
        conversations.retain(|turns| is_sound(turns));
        state.chat = Chat::restored(conversations);
        for (recall, lines) in [
            (&mut state.prompts, self.prompts),
            (&mut state.commands, self.commands),
        ] {
            *recall = LineHistory::default();
            lines.iter().for_each(|line| recall.push(line));
        }
        state.options = RequestOptions::restored(&self.options);
        let fidelity = self
            .fidelity
            .into_iter()
            .filter_map(PersistedFidelity::known);
        state.fidelity = fidelity.take(FIDELITIES_MAX).collect();
        state.chosen_looks = ChosenLooks {
            theme: self.theme.and_then(|name| name.parse().ok()),
            glyphs: self.glyphs.and_then(|name| name.parse().ok()),
            mouse: self.mouse,
        };
        if let (Some(theme), false) = (state.chosen_looks.theme, fixed.theme) {
            state.paint.theme = theme;
        }
        if let (Some(glyphs), false) = (state.chosen_looks.glyphs, fixed.glyphs) {
            state.paint.glyphs = glyphs;
        }
        if let (Some(mouse), false) = (state.chosen_looks.mouse, fixed.mouse) {
            state.mouse = mouse;
        }
    }
}

/// The lines that are short enough to be kept.
fn short(lines: &[String]) -> Vec<String> {
    let short = lines.iter().filter(|line| line.len() <= PROMPT_BYTES_MAX);
    short.cloned().collect()
}

/// Whether turns alternate between prompts and answers, and stay within the bound of a conversation.
fn is_sound(turns: &[Turn]) -> bool {
    use Speaker::{Assistant, User};

    let pairs = turns.chunks(2);
    let in_turn =
        |pair: &[Turn]| matches!(pair, [a, b] if (a.speaker, b.speaker) == (User, Assistant));
    let bytes: usize = turns.iter().map(|turn| turn.text.len()).sum();
    !turns.is_empty()
        && pairs.into_iter().all(in_turn)
        && (turns.len() == 2 || bytes <= CONVERSATION_BYTES_MAX)
}
