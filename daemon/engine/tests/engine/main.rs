//! The engine as the daemon meets it: checkpoints, requests, levels, and GPUs on the stand-in.

mod card;
mod card_containers;
mod card_memory;
mod card_stream;
mod card_switch;
mod checkpoints;
mod containers;
mod derivative;
mod fixtures;
mod gguf;
mod levels;
mod loading;
mod requests;
mod small;
mod synth;
