//! The client as its users meet it: a process of its own, on a pipe or a terminal, with the real daemon or one that plays a
//! script.

mod chat;
mod client;
mod completions;
mod daemon;
mod doctor;
mod fidelity;
mod jobs;
mod journeys;
mod library;
mod memory;
mod optimizer;
mod plans;
mod replay;
mod report;
mod run;
mod support;
mod terminal;
