//! The scenes of the pictures.

use crate::palette::{DARK, LIGHT, Palette};

/// A picture, and what happens before it is taken.
#[derive(Debug)]
pub(crate) struct Scene {
    /// Name of the file, without its ending.
    pub(crate) name: &'static str,
    /// Text that describes the picture, for those who cannot see it.
    pub(crate) words: &'static str,
    /// Columns and rows.
    pub(crate) size: (u16, u16),
    pub(crate) palette: &'static Palette,
    /// Whether the client may use colour.
    pub(crate) colour: bool,
    pub(crate) moves: &'static [Move],
}

/// A step before the picture is taken.
#[derive(Debug)]
pub(crate) enum Move {
    Press(&'static str),
    /// Wait until the screen shows these words.
    Wait(&'static str),
    /// Let some milliseconds pass.
    Pause(u64),
}

use Move::{Pause, Press, Wait};

/// The overview, where most scenes begin.
const READY: Move = Wait("demonstration model");
const STORY: &str = "Tell me a story about Mia and a lost kite.\r";
/// A request that has ended when the picture is taken, so that graphs and lists have something to show.
const EARLIER_STORY: &str = "Tell me a story about Tom and his dog.\r";
const EARLIER_ENDED: Move = Wait("4/4");
/// The first of the story's blocks is done, and the second begun.
const UNDER_WAY: Move = Wait("1/4");
/// Some of the block's words are guessed.
const MOMENT: Move = Pause(200);
const INTO_PROMPT: &str = "i";
const OUT_OF_PROMPT: &str = "\t";

pub(crate) const SCENES: &[Scene] = &[
    Scene {
        name: "overview",
        words: "The overview while a story is written: memory, requests, and the text as it takes shape",
        size: (160, 50),
        palette: &DARK,
        colour: true,
        moves: &[
            READY,
            Press(INTO_PROMPT),
            Press(EARLIER_STORY),
            EARLIER_ENDED,
            Press(STORY),
            UNDER_WAY,
            MOMENT,
        ],
    },
    Scene {
        name: "overview-light",
        words: "The overview on a small, light terminal",
        size: (80, 24),
        palette: &LIGHT,
        colour: true,
        moves: &[READY, Press(INTO_PROMPT), Press(STORY), UNDER_WAY, MOMENT],
    },
    Scene {
        name: "overview-tiny",
        words: "The overview on a terminal of 40 by 12: the text alone",
        size: (40, 12),
        palette: &DARK,
        colour: true,
        moves: &[
            Wait("connected"),
            Press(INTO_PROMPT),
            Press(STORY),
            UNDER_WAY,
            MOMENT,
        ],
    },
    Scene {
        name: "overview-plain",
        words: "The overview without colour: words, bold and italic letters say it all",
        size: (100, 30),
        palette: &LIGHT,
        colour: false,
        moves: &[READY, Press(INTO_PROMPT), Press(STORY), UNDER_WAY, MOMENT],
    },
    Scene {
        name: "memory",
        words: "The memory page: what holds how much, and where each layer is",
        size: (160, 50),
        palette: &DARK,
        colour: true,
        moves: &[
            READY,
            Press(INTO_PROMPT),
            Press(EARLIER_STORY),
            EARLIER_ENDED,
            Press(STORY),
            UNDER_WAY,
            Press(OUT_OF_PROMPT),
            Press("2"),
            MOMENT,
        ],
    },
    Scene {
        name: "canvas",
        words: "The canvas page with the heat map of a story that is being written",
        size: (140, 44),
        palette: &DARK,
        colour: true,
        moves: &[
            READY,
            Press(INTO_PROMPT),
            Press(STORY),
            Wait("1/4"),
            Press(OUT_OF_PROMPT),
            Press("3"),
            Pause(900),
        ],
    },
    Scene {
        name: "chat",
        words: "A conversation in which some words of an answer are chosen to be written anew",
        size: (120, 40),
        palette: &DARK,
        colour: true,
        moves: &[
            READY,
            Press("4i"),
            Press(STORY),
            // Only a complete answer has figures above it.
            Wait(" passes · "),
            Press(OUT_OF_PROMPT),
            Press("e"),
            Press("lllll lll"),
            MOMENT,
        ],
    },
    Scene {
        name: "levels",
        words: "The chooser of levels, with what each would need",
        size: (120, 40),
        palette: &LIGHT,
        colour: true,
        moves: &[
            READY,
            Press("5"),
            Wait("aggressive"),
            Press("jjm"),
            Wait(" KL "),
            MOMENT,
        ],
    },
    Scene {
        name: "jobs",
        words: "Jobs with their progress, and the models at hand",
        size: (120, 40),
        palette: &DARK,
        colour: true,
        moves: &[
            READY,
            Press("5"),
            Wait("aggressive"),
            Press("jjm"),
            Press("6"),
            Wait("sluice-demo"),
            Pause(600),
        ],
    },
];
