//! A PDF's pages as glyphs with places: what its content streams show, forms among them. Pictures are not looked at.
//!
//! For the process apart alone: what a file makes this do is bounded by the process's limits.

use std::{io, sync::Arc};

use hayro_font::{
    CMapResolverFn, Font, FontCache, FontGlyph, FontQuery, FontResolverFn, GlyphId, StandardFont,
    UNITS_PER_EM,
    hayro_cmap::BfString,
    hayro_syntax::{
        LoadPdfError, Pdf,
        content::{TypedIter, ops::TypedInstruction},
        object::{Array, Dict, Name, Object, Stream},
        page::{Page, Resources},
    },
    kurbo::{Affine, Point, Vec2},
};

use crate::{
    DocumentError,
    layout::{Glyph, Layout},
};

/// Bytes from the file's start among which its head begins: some have junk before it.
const HEAD_BYTES: usize = 1024;
/// The flag of annotations that nobody sees.
const HIDDEN: u32 = 1 << 1;
/// Graphics states that are kept at a time, and forms inside each other. Real pages have few of either.
const STATES_MAX: usize = 512;
const FORMS_MAX: usize = 16;

/// Why reading stops before the last page.
pub(crate) enum Stop {
    /// There is something wrong with the document.
    Document(DocumentError),
    /// What takes the pages is gone.
    Socket(io::Error),
}

/// Gives the text of each page, in order; that of a page without is empty.
pub(crate) fn read(
    file: Vec<u8>,
    mut take: impl FnMut(String) -> Result<(), Stop>,
) -> Result<(), Stop> {
    let head = &file[..file.len().min(HEAD_BYTES)];
    if !head.windows(5).any(|bytes| bytes == b"%PDF-") {
        return Err(Stop::Document(DocumentError::NotPdf));
    }
    let pdf = Pdf::new(file).map_err(|error| {
        Stop::Document(match error {
            LoadPdfError::Decryption(_) => DocumentError::Encrypted,
            LoadPdfError::Invalid => DocumentError::Damaged,
        })
    })?;
    if pdf.pages().is_empty() {
        return Err(Stop::Document(DocumentError::Damaged));
    }
    let fonts = Fonts::new();
    for page in pdf.pages().iter() {
        take(text(page, &fonts))?;
    }
    Ok(())
}

fn text<'a>(page: &Page<'a>, fonts: &Fonts<'a>) -> String {
    let mut reader = Reader {
        fonts,
        layout: Layout::default(),
        forms: 0,
    };
    if let Some(content) = page.page_stream() {
        reader.read(content, page.resources(), State::default());
    }
    reader.read_annotations(page);
    reader.layout.text()
}

/// The document's fonts, each read once.
struct Fonts<'a> {
    cache: FontCache<'a>,
    programs: FontResolverFn,
    cmaps: CMapResolverFn,
}

impl<'a> Fonts<'a> {
    fn new() -> Self {
        Self {
            cache: FontCache::new(),
            // Nothing is drawn: what embeds no font is given one for its names and widths.
            programs: Arc::new(|query| {
                Some(match query {
                    FontQuery::Standard(font) => font.get_font_data(),
                    FontQuery::Fallback(query) => query.pick_standard_font().get_font_data(),
                })
            }),
            cmaps: Arc::new(|_| None),
        }
    }

    fn named(&self, name: &Name<'_>, resources: &Resources<'a>) -> Option<Font<'a>> {
        match resources.get_font(name) {
            Some(dict) => self.cache.font(&dict, &self.programs, &self.cmaps),
            // What viewers do.
            None => (self.cache).standard_font(StandardFont::Helvetica, &self.programs),
        }
    }
}

/// What `q` keeps and `Q` brings back.
#[derive(Clone)]
struct State<'a> {
    /// From the content's coordinates to the page's.
    transform: Affine,
    font: Option<Font<'a>>,
    font_size: f64,
    character_space: f64,
    word_space: f64,
    /// Of widths.
    scale: f64,
    leading: f64,
    rise: f64,
}

impl Default for State<'_> {
    fn default() -> Self {
        Self {
            transform: Affine::IDENTITY,
            font: None,
            font_size: 1.0,
            character_space: 0.0,
            word_space: 0.0,
            scale: 1.0,
            leading: 0.0,
            rise: 0.0,
        }
    }
}

struct Reader<'r, 'a> {
    fonts: &'r Fonts<'a>,
    layout: Layout,
    /// Forms that this is in.
    forms: usize,
}

impl<'a> Reader<'_, 'a> {
    fn read(&mut self, content: &[u8], resources: &Resources<'a>, state: State<'a>) {
        use TypedInstruction as I;
        let mut text = Text {
            state,
            place: Affine::IDENTITY,
            line: Affine::IDENTITY,
        };
        let mut states = Vec::new();
        let mut operations = TypedIter::new(content);
        while let Some(operation) = operations.next() {
            match operation {
                I::SaveState(_) if states.len() < STATES_MAX => states.push(text.state.clone()),
                I::RestoreState(_) => text.state = states.pop().unwrap_or(text.state),
                I::Transform(m) => {
                    text.state.transform *=
                        matrix([m.0, m.1, m.2, m.3, m.4, m.5].map(|n| n.as_f64()));
                }
                I::BeginText(_) => text.set_place(Affine::IDENTITY),
                I::SetTextMatrix(m) => {
                    text.set_place(matrix([m.0, m.1, m.2, m.3, m.4, m.5].map(|n| n.as_f64())));
                }
                I::TextFont(font) => {
                    text.state.font = self.fonts.named(font.0, resources);
                    text.state.font_size = font.1.as_f64();
                }
                I::CharacterSpacing(space) => text.state.character_space = space.0.as_f64(),
                I::WordSpacing(space) => text.state.word_space = space.0.as_f64(),
                I::HorizontalScaling(percent) => text.state.scale = percent.0.as_f64() / 100.0,
                I::TextLeading(leading) => text.state.leading = leading.0.as_f64(),
                I::TextRise(rise) => text.state.rise = rise.0.as_f64(),
                I::NextLine(by) => text.next_line(by.0.as_f64(), by.1.as_f64()),
                I::NextLineAndSetLeading(by) => {
                    text.state.leading = -by.1.as_f64();
                    text.next_line(by.0.as_f64(), by.1.as_f64());
                }
                I::NextLineUsingLeading(_) => text.next_line(0.0, -text.state.leading),
                I::ShowText(shown) => text.show(shown.0.as_bytes(), &mut self.layout),
                I::ShowTexts(shown) => {
                    for object in shown.0.iter::<Object<'_>>() {
                        match object {
                            Object::Number(back) => text.advance(-back.as_f64() / 1000.0),
                            Object::String(shown) => text.show(shown.as_bytes(), &mut self.layout),
                            _ => {}
                        }
                    }
                }
                I::NextLineAndShowText(shown) => {
                    text.next_line(0.0, -text.state.leading);
                    text.show(shown.0.as_bytes(), &mut self.layout);
                }
                I::ShowTextWithParameters(shown) => {
                    text.state.word_space = shown.0.as_f64();
                    text.state.character_space = shown.1.as_f64();
                    text.next_line(0.0, -text.state.leading);
                    text.show(shown.2.as_bytes(), &mut self.layout);
                }
                I::XObject(object) => {
                    if let Some(stream) = resources.get_x_object(object.0) {
                        self.read_form(&stream, resources, &text.state);
                    }
                }
                _ => {}
            }
        }
    }

    /// Reads a form, which is content that is shown as if it stood in the page's.
    fn read_form(&mut self, stream: &Stream<'a>, around: &Resources<'a>, state: &State<'a>) {
        let dict = stream.dict();
        let is_image = dict
            .get::<Name<'_>>(b"Subtype")
            .is_some_and(|name| &*name == b"Image");
        if is_image || self.forms == FORMS_MAX {
            return;
        }
        let Ok(content) = stream.decoded_data() else {
            return;
        };
        let resources = dict.get::<Dict<'a>>(b"Resources").map(Resources::new);
        let mut state = state.clone();
        if let Some(form) = dict.get::<[f64; 6]>(b"Matrix") {
            state.transform *= matrix(form);
        }
        self.forms += 1;
        self.read(&content, resources.as_ref().unwrap_or(around), state);
        self.forms -= 1;
    }

    /// Reads what stands in form fields and notes, each a form at a place of its own.
    fn read_annotations(&mut self, page: &Page<'a>) {
        let Some(annotations) = page.raw().get::<Array<'a>>(b"Annots") else {
            return;
        };
        for annotation in annotations.iter::<Dict<'a>>() {
            if annotation.get::<u32>(b"F").unwrap_or(0) & HIDDEN != 0 {
                continue;
            }
            let shown = annotation.get::<Dict<'a>>(b"AP");
            let shown = shown.and_then(|shown| shown.get::<Stream<'a>>(b"N"));
            let place = annotation.get::<[f64; 4]>(b"Rect");
            if let (Some(form), Some([x0, y0, x1, y1])) = (shown, place) {
                let state = State {
                    transform: Affine::translate((x0.min(x1), y0.min(y1))),
                    ..State::default()
                };
                self.read_form(&form, page.resources(), &state);
            }
        }
    }
}

/// Text as it is shown, and where.
struct Text<'a> {
    state: State<'a>,
    /// Of the next glyph.
    place: Affine,
    /// Of the line's start.
    line: Affine,
}

impl Text<'_> {
    fn set_place(&mut self, place: Affine) {
        (self.place, self.line) = (place, place);
    }

    fn next_line(&mut self, x: f64, y: f64) {
        self.set_place(self.line * Affine::translate((x, y)));
    }

    fn is_vertical(&self) -> bool {
        let font = self.state.font.as_ref();
        font.is_some_and(|font| !font.is_horizontal())
    }

    /// Moves on by so many ems.
    fn advance(&mut self, ems: f64) {
        self.step(ems * self.state.font_size);
    }

    fn step(&mut self, length: f64) {
        let by = match self.is_vertical() {
            true => Vec2::new(0.0, length),
            false => Vec2::new(length * self.state.scale, 0.0),
        };
        self.place *= Affine::translate(by);
    }

    fn show(&mut self, bytes: &[u8], layout: &mut Layout) {
        let Some(font) = self.state.font.clone() else {
            return;
        };
        let is_vertical = self.is_vertical();
        let mut offset = 0;
        while offset < bytes.len() {
            let (code, length) = font.read_code(bytes, offset);
            offset += length;
            let advance = font.code_advance(code) / f64::from(UNITS_PER_EM);
            let advance = if is_vertical { advance.y } else { advance.x };
            let start = self.state.transform * self.place;
            let is_space = length == 1 && code == 32;
            let word_space = if is_space { self.state.word_space } else { 0.0 };
            self.step(advance * self.state.font_size);
            let end = self.state.transform * self.place;
            // Apart from the glyph itself: some programs put words apart by this alone.
            self.step(self.state.character_space + word_space);
            // Which glyph draws it is of no matter.
            let unicode = match font.glyph(GlyphId::NOTDEF, code) {
                FontGlyph::Outline(glyph) => glyph.as_unicode(),
                FontGlyph::Type3(glyph) => glyph.as_unicode(),
            };
            let mut buffer = [0; 4];
            let text = match &unicode {
                Some(BfString::Char(character)) => character.encode_utf8(&mut buffer),
                Some(BfString::String(text)) => text.as_str(),
                None => continue,
            };
            let up = start * Point::new(0.0, self.state.font_size) - start * Point::ORIGIN;
            let along = match is_vertical {
                true => -up,
                false => start * Point::new(1.0, 0.0) - start * Point::ORIGIN,
            };
            let base = Point::new(0.0, self.state.rise);
            layout.push(&Glyph {
                text,
                start: start * base,
                end: end * base,
                along,
                size: up.hypot(),
            });
        }
    }
}

fn matrix(numbers: [f64; 6]) -> Affine {
    Affine::new(numbers)
}
