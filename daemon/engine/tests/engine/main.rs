//! The engine as the daemon meets it: checkpoints, requests, levels, and GPUs on the stand-in.

mod checkpoints;
mod containers;
mod encoders;
mod features;
mod fixtures;
mod gguf;
mod gpu;
mod gpu_containers;
mod gpu_cpu_experts;
mod gpu_experts;
mod gpu_memory;
mod gpu_stream;
mod gpu_switch;
mod levels;
mod loading;
mod mixtures;
mod pruned;
mod requests;
mod small;
mod synth;
mod weight_cache;
