//! The jobs page: work that runs, outcomes of work that ended, and the list of models.

mod lists;

use ratatui::layout::{Constraint, Layout, Rect};

use super::super::{
    jobs::JobsPane,
    screen::{Screen, ScreenShape},
};

pub(in super::super) fn draw(screen: &mut Screen<'_, '_>, area: Rect) {
    match (screen.shape, screen.state.jobs.list) {
        (ScreenShape::Small, JobsPane::Work) => lists::draw_work(screen, area),
        (ScreenShape::Small, JobsPane::Models) => lists::draw_models(screen, area),
        (ScreenShape::Wide | ScreenShape::Tall, _) => {
            let [work, models] =
                Layout::vertical([Constraint::Percentage(50), Constraint::Min(0)]).areas(area);
            lists::draw_work(screen, work);
            lists::draw_models(screen, models);
        }
    }
}
