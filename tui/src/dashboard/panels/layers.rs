//! The layer map: where each layer's weights are, in what format, and which are on their way.

use ratatui::{
    layout::Rect,
    text::{Line, Span},
};
use sluice_proto::v1::{
    Compression, Dtype, LayerStatus, Tier, WeightFormat, WeightGroupKind, WeightGroupStatus,
};
use sluice_shared::units;

use super::super::{hit_areas::HitTarget, screen::Screen, state::DashboardState};
use crate::{
    paint::{Paint, Role},
    text::{clip, sanitise_line, width},
};

/// Width of the labels before the cells.
const NAME_COLUMNS: usize = 10;
/// Largest width of a cell; one of its columns is a space.
const CELL_COLUMNS_MAX: usize = 4;

/// Where weights are, ordered by speed. The slowest place of a layer's parts counts for the layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Placement {
    Device,
    Host,
    Disk,
    Unknown,
    /// In a staging buffer, or being copied to one.
    InFlight,
}

impl Placement {
    fn of(group: &WeightGroupStatus) -> Self {
        match (group.is_in_flight, group.tier()) {
            (true, _) => Self::InFlight,
            (_, Tier::Device) => Self::Device,
            (_, Tier::Host) => Self::Host,
            (_, Tier::Disk) => Self::Disk,
            (_, Tier::Unspecified) => Self::Unknown,
        }
    }

    fn mark(self) -> &'static str {
        match self {
            Self::Device => "█",
            Self::Host => "▒",
            Self::Disk => "░",
            Self::InFlight => "»",
            Self::Unknown => "?",
        }
    }

    fn role(self) -> Role {
        match self {
            Self::Device => Role::Device,
            Self::Host => Role::Host,
            Self::Disk => Role::Disk,
            Self::InFlight => Role::InFlight,
            Self::Unknown => Role::Dim,
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Host => "host",
            Self::Disk => "disk",
            Self::InFlight => "in flight",
            Self::Unknown => "unknown",
        }
    }
}

/// One character for a format: the number of bits of a block format, else a letter.
fn format_mark(format: WeightFormat) -> char {
    match (format.compression(), format.dtype()) {
        (
            Compression::Huffman
            | Compression::Dictionary
            | Compression::Trellis
            | Compression::Columns,
            _,
        ) => 'c',
        (Compression::None | Compression::Unspecified, dtype) => match dtype {
            Dtype::F32 => 'F',
            Dtype::F16 => 'h',
            Dtype::Bf16 => 'b',
            Dtype::Q80 => '8',
            Dtype::Q6K => '6',
            Dtype::Q5K | Dtype::Q51 | Dtype::Q50 => '5',
            Dtype::Q4K | Dtype::Q41 | Dtype::Q40 => '4',
            Dtype::Q3K => '3',
            Dtype::Q2K => '2',
            Dtype::Unspecified => '?',
        },
    }
}

/// What a row of the map shows.
#[derive(Clone, Copy)]
enum MapRow {
    /// The slowest place of each layer's parts.
    Whole,
    /// The place of the part of this kind.
    Part(WeightGroupKind),
    /// The format of each layer's largest part.
    Format,
}

impl MapRow {
    fn cell(self, layer: &LayerStatus, cell_columns: usize, paint: &Paint) -> Span<'static> {
        let cell = |mark: &str, role| {
            let filled = mark.repeat(cell_columns.saturating_sub(1).max(1));
            Span::styled(format!("{filled:<cell_columns$}"), paint.style(role))
        };
        match self {
            Self::Whole => {
                let place = layer.groups.iter().map(Placement::of).max();
                let place = place.unwrap_or(Placement::Unknown);
                cell(place.mark(), place.role())
            }
            Self::Part(kind) => {
                let group = layer.groups.iter().find(|group| group.kind() == kind);
                match group.map(Placement::of) {
                    Some(place) => cell(place.mark(), place.role()),
                    None => Span::raw(" ".repeat(cell_columns)),
                }
            }
            Self::Format => {
                let largest = layer.groups.iter().max_by_key(|group| group.bytes);
                let mark = largest.and_then(|group| group.format);
                let mark = mark.map_or('?', format_mark);
                // A wide cell has the letter in its middle alone.
                Span::styled(format!("{mark:<cell_columns$}"), paint.style(Role::Dim))
            }
        }
    }
}

/// Draws the map with one row for all parts of a layer, in as many lines as the layers need. Returns the number of rows.
pub(in super::super) fn brief(screen: &mut Screen<'_, '_>, area: Rect) -> u16 {
    draw(
        screen,
        area,
        &[("layers", MapRow::Whole), ("format", MapRow::Format)],
        false,
    )
}

/// The meaning of the marks, as a title.
pub(in super::super) const BRIEF_TITLE: &str = "Layers: █ device ▒ host ░ disk » in flight";

/// Rows that [`brief`] needs in `columns`.
pub(in super::super) fn brief_rows(state: &DashboardState, columns: u16) -> u16 {
    let layers = state.snapshot().map_or(0, |snapshot| snapshot.layers.len());
    let room = usize::from(columns).saturating_sub(NAME_COLUMNS).max(1);
    let lines = layers.div_ceil(room);
    u16::try_from(lines * 2).unwrap_or(u16::MAX)
}

/// Draws the map with a row for each part of a layer, the legend, and the selected layer in words.
pub(in super::super) fn full(screen: &mut Screen<'_, '_>, area: Rect) {
    let state = screen.state;
    let Some(snapshot) = state
        .snapshot()
        .filter(|snapshot| !snapshot.layers.is_empty())
    else {
        let line = Line::styled("no model is loaded", screen.style(Role::Dim));
        screen.lines(area, vec![line]);
        return;
    };
    // Parts are in the order in which a layer uses them; those of the embedding and the LM head share the first row.
    let groups = || snapshot.layers.iter().flat_map(|layer| &layer.groups);
    let has = |kind| groups().any(|group| group.kind() == kind);
    let inner = [
        ("attention", WeightGroupKind::Attention),
        // The label has no room for the whole name, which stands in the words below the map.
        ("cross_att", WeightGroupKind::CrossAttention),
        ("gate_up", WeightGroupKind::GateUp),
        ("down", WeightGroupKind::Down),
        ("router", WeightGroupKind::Router),
        ("shared", WeightGroupKind::SharedExpert),
        ("experts", WeightGroupKind::Expert),
    ];
    let mut rows = vec![("layers", MapRow::Whole)];
    if area.height >= 8 {
        let inner = inner.into_iter().filter(|(_, kind)| has(*kind));
        rows.extend(inner.map(|(name, kind)| (name, MapRow::Part(kind))));
    }
    rows.push(("format", MapRow::Format));
    let [map, foot] = ratatui::layout::Layout::vertical([
        ratatui::layout::Constraint::Min(0),
        ratatui::layout::Constraint::Length(3),
    ])
    .areas(area);
    let used = draw(screen, map, &rows, true);
    let place = Rect::new(foot.x, map.y + used, foot.width, foot.height).intersection(area);
    let columns = usize::from(area.width);
    let mut lines = vec![legend(columns, screen.paint())];
    if let Some(layer) = snapshot
        .layers
        .get(state.layer.min(snapshot.layers.len() - 1))
    {
        lines.push(Line::raw(clip(&sanitise_line(&about(layer)), columns)));
    }
    screen.lines(place, lines);
}

/// Draws rows of cells beside their names, folded where the layers do not fit one line.
fn draw(screen: &mut Screen<'_, '_>, area: Rect, rows: &[(&str, MapRow)], has_cursor: bool) -> u16 {
    let state = screen.state;
    let Some(snapshot) = state.snapshot() else {
        return 0;
    };
    let paint = screen.paint();
    let room = usize::from(area.width).saturating_sub(NAME_COLUMNS).max(1);
    let layers = &snapshot.layers;
    let cell = (room / layers.len().max(1)).clamp(1, CELL_COLUMNS_MAX);
    let selected = state.layer.min(layers.len().saturating_sub(1));
    let mut y = area.y;
    for (line, chunk) in layers.chunks((room / cell).max(1)).enumerate() {
        let first = line * (room / cell).max(1);
        for (name, row) in rows {
            if y >= area.bottom() {
                return y - area.y;
            }
            let name = format!("{name:<NAME_COLUMNS$}");
            let mut spans = vec![Span::styled(name, paint.style(Role::Dim))];
            for (index, layer) in chunk.iter().enumerate() {
                let mut span = row.cell(layer, cell, paint);
                if has_cursor && first + index == selected && matches!(row, MapRow::Format) {
                    span = span.style(paint.style(Role::Selected));
                }
                spans.push(span);
            }
            let place = Rect::new(area.x, y, area.width, 1);
            screen.frame.render_widget(Line::from(spans), place);
            for index in 0..chunk.len() {
                let x = area.x + (NAME_COLUMNS + index * cell) as u16;
                let place = Rect::new(x, y, cell as u16, 1);
                screen.hit_area(place, HitTarget::Layer(first + index));
            }
            y += 1;
        }
    }
    y - area.y
}

/// The meaning of the marks.
fn legend(columns: usize, paint: &Paint) -> Line<'static> {
    let places = [
        Placement::Device,
        Placement::Host,
        Placement::Disk,
        Placement::InFlight,
    ];
    let mut spans = Vec::new();
    let mut used = 0;
    for place in places {
        let words = format!("{} {}  ", place.mark(), place.words());
        used += width(&words);
        if used > columns {
            break;
        }
        spans.push(Span::styled(words, paint.style(place.role())));
    }
    let formats = "b bf16, h f16, F f32, 8 6 4 bits, c compressed";
    if used + width(formats) <= columns {
        spans.push(Span::styled(formats, paint.style(Role::Dim)));
    }
    Line::from(spans)
}

/// A layer in words.
fn about(layer: &LayerStatus) -> String {
    let name = match layer.name.parse::<u32>() {
        Ok(_) => format!("layer {}", layer.name),
        Err(_) => layer.name.clone(),
    };
    let parts = layer.groups.iter().map(|group| {
        let place = Placement::of(group).words();
        let bytes = units::bytes(group.bytes);
        let format = group.format.unwrap_or_default();
        format!("{} {bytes} {format} {place}", group.kind())
    });
    format!("{name}: {}", parts.collect::<Vec<_>>().join(" · "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_is_a_letter_or_its_bits() {
        for (dtype, mark) in [
            (Dtype::Bf16, 'b'),
            (Dtype::F16, 'h'),
            (Dtype::F32, 'F'),
            (Dtype::Q80, '8'),
            (Dtype::Q4K, '4'),
            (Dtype::Unspecified, '?'),
        ] {
            assert_eq!(format_mark(dtype.into()), mark);
        }
        let compressed = WeightFormat {
            dtype: Dtype::Bf16.into(),
            compression: Compression::Huffman.into(),
        };
        assert_eq!(format_mark(compressed), 'c');
    }

    #[test]
    fn what_is_on_its_way_counts_before_where_it_lives() {
        let group = |tier: Tier, is_in_flight| WeightGroupStatus {
            tier: tier.into(),
            is_in_flight,
            ..Default::default()
        };
        assert_eq!(Placement::of(&group(Tier::Disk, true)), Placement::InFlight);
        let layer = [
            group(Tier::Device, false),
            group(Tier::Disk, false),
            group(Tier::Host, false),
        ];
        assert_eq!(layer.iter().map(Placement::of).max(), Some(Placement::Disk));
    }
}
