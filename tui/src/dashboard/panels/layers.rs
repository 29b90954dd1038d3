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
    canvas::wrap_text,
    paint::{Paint, Role},
    text::{clip, sanitise_line, width},
};

/// Width of the labels before the cells.
const NAME_COLUMNS: usize = 10;
/// Largest width of a cell; one of its columns is a space.
const CELL_COLUMNS_MAX: usize = 4;

/// Lines below the map, at least: what marks mean, and the selected layer in words.
const FOOT_ROWS: u16 = 2;

/// Parts of layers that have a row where a model has them, with the row's label, in the order in which a pass uses them. Labels
/// without room for the whole name are short; it stands in the words below the map. Embedding and LM head share the first row.
const PARTS: [(&str, WeightGroupKind); 10] = [
    ("embed_end", WeightGroupKind::EmbeddingEnd),
    ("self_cond", WeightGroupKind::SelfConditioning),
    ("attention", WeightGroupKind::Attention),
    ("cross_att", WeightGroupKind::CrossAttention),
    ("gate_up", WeightGroupKind::GateUp),
    ("down", WeightGroupKind::Down),
    ("router", WeightGroupKind::Router),
    ("shared", WeightGroupKind::SharedExpert),
    ("experts", WeightGroupKind::Expert),
    ("layer_end", WeightGroupKind::LayerEnd),
];

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

    /// Where a layer has its part of this kind.
    fn of_part(layer: &LayerStatus, kind: WeightGroupKind) -> Option<Self> {
        let groups = layer.groups.iter().filter(|group| group.kind() == kind);
        match kind {
            // Some of them are in their cache most of the time, which says little of the others.
            WeightGroupKind::Expert => groups.max_by_key(|group| group.bytes).map(Self::of),
            _ => groups.map(Self::of).max(),
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
    /// The place of the part of this kind; of experts, that of most of them.
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
                let groups = layer.groups.iter();
                let places = groups.filter_map(|group| Placement::of_part(layer, group.kind()));
                let place = places.max().unwrap_or(Placement::Unknown);
                cell(place.mark(), place.role())
            }
            Self::Part(kind) => match Placement::of_part(layer, kind) {
                Some(place) => cell(place.mark(), place.role()),
                None => Span::raw(" ".repeat(cell_columns)),
            },
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

/// Rows that [`full`] needs in `columns`, with two lines of words.
pub(in super::super) fn full_rows(state: &DashboardState, columns: u16) -> u16 {
    let Some(snapshot) = state.snapshot() else {
        return 0;
    };
    let layers = &snapshot.layers;
    let (_, on_a_line) = cells(columns, layers.len());
    let rows = layers.len().div_ceil(on_a_line) * (parts(layers).count() + 2);
    u16::try_from(rows).map_or(u16::MAX, |rows| rows.saturating_add(FOOT_ROWS + 1))
}

/// The rows of parts that these layers have.
fn parts(layers: &[LayerStatus]) -> impl Iterator<Item = (&'static str, MapRow)> {
    let groups = || layers.iter().flat_map(|layer| &layer.groups);
    let parts = PARTS.into_iter();
    let parts = parts.filter(move |(_, kind)| groups().any(|group| group.kind() == *kind));
    parts.map(|(name, kind)| (name, MapRow::Part(kind)))
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
    let [map, _] = ratatui::layout::Layout::vertical([
        ratatui::layout::Constraint::Min(0),
        ratatui::layout::Constraint::Length(FOOT_ROWS),
    ])
    .areas(area);
    let (_, on_a_line) = cells(map.width, snapshot.layers.len());
    let lines = snapshot.layers.len().div_ceil(on_a_line);
    let mut rows = vec![("layers", MapRow::Whole)];
    if area.height >= 8 {
        // The row below them has the cursor, so it has to stay.
        let room = (usize::from(map.height) / lines).saturating_sub(2);
        rows.extend(parts(&snapshot.layers).take(room));
    }
    rows.push(("format", MapRow::Format));
    let used = draw(screen, map, &rows, true);
    let free = area.height.saturating_sub(used);
    let place = Rect::new(area.x, map.y + used, area.width, free);
    let columns = usize::from(area.width);
    let mut lines = vec![legend(columns, screen.paint())];
    if let Some(layer) = snapshot
        .layers
        .get(state.layer.min(snapshot.layers.len() - 1))
    {
        let mut words = wrap_text(&sanitise_line(&about(layer)), columns);
        let room = usize::from(free).saturating_sub(1);
        if words.len() > room {
            let rest = words.split_off(room.saturating_sub(1)).concat();
            words.push(clip(&rest, columns));
        }
        lines.extend(words.into_iter().map(Line::raw));
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
    let layers = &snapshot.layers;
    let (cell, on_a_line) = cells(area.width, layers.len());
    let selected = state.layer.min(layers.len().saturating_sub(1));
    let mut y = area.y;
    for (line, chunk) in layers.chunks(on_a_line).enumerate() {
        let first = line * on_a_line;
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

/// The width of a cell, and how many there are on a line, of so many layers.
fn cells(columns: u16, layers: usize) -> (usize, usize) {
    let room = usize::from(columns).saturating_sub(NAME_COLUMNS).max(1);
    let cell = (room / layers.max(1)).clamp(1, CELL_COLUMNS_MAX);
    (cell, (room / cell).max(1))
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
        match group.count {
            Some(count) => format!("{count} {}s {bytes} {format} {place}", group.kind()),
            None => format!("{} {bytes} {format} {place}", group.kind()),
        }
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
    fn every_part_of_a_layer_has_a_row() {
        let kinds = (1..).map_while(|kind| WeightGroupKind::try_from(kind).ok());
        let share_the_first = [
            WeightGroupKind::Embedding,
            WeightGroupKind::FinalNorm,
            WeightGroupKind::LmHead,
        ];
        for kind in kinds {
            let labels = PARTS.iter().filter(|(_, of_row)| *of_row == kind);
            let labels: Vec<_> = labels.map(|(label, _)| label.len()).collect();
            match share_the_first.contains(&kind) {
                true => assert!(labels.is_empty(), "{kind}"),
                false => assert!(labels.len() == 1 && labels[0] < NAME_COLUMNS, "{kind}"),
            }
        }
    }

    #[test]
    fn most_experts_tell_where_experts_are() {
        let experts = |tier: Tier, is_in_flight, count: u32| WeightGroupStatus {
            kind: WeightGroupKind::Expert.into(),
            tier: tier.into(),
            bytes: u64::from(count) << 20,
            is_in_flight,
            count: Some(count),
            ..Default::default()
        };
        let layer = LayerStatus {
            name: "3".to_owned(),
            groups: vec![
                experts(Tier::Host, true, 20),
                experts(Tier::Host, false, 44),
            ],
            ..Default::default()
        };
        let place = Placement::of_part(&layer, WeightGroupKind::Expert);
        assert_eq!(place, Some(Placement::Host));
        assert_eq!(Placement::of_part(&layer, WeightGroupKind::Router), None);
        let words = about(&layer);
        assert!(
            words.contains("20 experts 20.0 MiB") && words.contains("44 experts 44.0 MiB"),
            "{words}"
        );
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
