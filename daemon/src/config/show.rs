//! The configuration as a commented TOML file.

use std::fmt;

use super::{Config, Setting};

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = env!("CARGO_PKG_VERSION");
        writeln!(f, "# sluiced {version}: the configuration in force.")?;
        writeln!(f, "# Above each key stands the layer it comes from.")?;
        match &self.model.value {
            Some(path) => {
                let text = quoted(&path.to_string_lossy());
                key(f, "model", &self.model, &text)?;
            }
            None => {
                writeln!(f, "\n# default: the demonstration model inside the program")?;
                writeln!(f, "# model = \"/path/to/checkpoint\"")?;
            }
        }
        let socket = quoted(&self.socket.value.path.to_string_lossy());
        key(f, "socket", &self.socket, &socket)?;
        let listen = quoted(&self.listen.value.to_string());
        key(f, "listen", &self.listen, &listen)?;
        key(
            f,
            "device",
            &self.device,
            &quoted(&self.device.value.to_string()),
        )?;
        let compute = quoted(&self.compute.value.to_string());
        key(f, "compute", &self.compute, &compute)?;
        key(f, "threads", &self.threads, &self.threads.value.to_string())?;
        key(f, "level", &self.level, &quoted(self.level.value.name()))?;
        let budget = quoted(&self.budget.value.to_string());
        key(f, "budget", &self.budget, &budget)?;
        let read_limit = quoted(&self.read_limit.value.to_string());
        key(f, "read_limit", &self.read_limit, &read_limit)?;
        let pin_limit = quoted(&self.pin_limit.value.to_string());
        key(f, "pin_limit", &self.pin_limit, &pin_limit)?;
        let embedding = quoted(self.embedding.value.name());
        key(f, "embedding", &self.embedding, &embedding)?;
        // With its point: a number without one is none of TOML's fractions.
        let factor = format!("{:?}", self.auto_factor.value.0);
        key(f, "auto_factor", &self.auto_factor, &factor)?;
        key(f, "kv", &self.kv, &quoted(self.kv.value.name()))?;
        key(f, "dial", &self.dial, &quoted(self.dial.value.name()))?;
        match &self.cache.value {
            Some(path) => key(f, "cache", &self.cache, &quoted(&path.to_string_lossy()))?,
            None => {
                writeln!(f, "\n# default: none, since there is no $HOME")?;
                writeln!(f, "# cache = \"/path/to/folder\"")?;
            }
        }
        let keep_converted = self.keep_converted.value.to_string();
        key(f, "keep_converted", &self.keep_converted, &keep_converted)?;
        let cache_limit = quoted(&self.cache_limit.value.to_string());
        key(f, "cache_limit", &self.cache_limit, &cache_limit)?;
        match &self.models.value {
            Some(path) => key(f, "models", &self.models, &quoted(&path.to_string_lossy()))?,
            None => {
                writeln!(f, "\n# default: none, since there is no $HOME")?;
                writeln!(f, "# models = \"/path/to/folder\"")?;
            }
        }
        let idle_unload = quoted(&self.idle_unload.value.to_string());
        key(f, "idle_unload", &self.idle_unload, &idle_unload)?;
        key(f, "queue", &self.queue, &self.queue.value.to_string())?;
        let parallel = self.parallel.value.to_string();
        key(f, "parallel", &self.parallel, &parallel)?;
        let drain = self.drain_seconds.value.to_string();
        key(f, "drain_seconds", &self.drain_seconds, &drain)?;
        key(f, "log", &self.log, &quoted(&self.log.value.to_string()))?;
        match self.model_settings.path() {
            Some(path) => writeln!(f, "\n# Settings of single models: {}", path.display()),
            None => Ok(()),
        }
    }
}

fn key<T>(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    setting: &Setting<T>,
    value: &str,
) -> fmt::Result {
    writeln!(f, "\n# {}\n{name} = {value}", setting.source)
}

/// A TOML basic string.
fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            control if control.is_control() => {
                quoted.push_str(&format!("\\u{:04X}", u32::from(control)));
            }
            plain => quoted.push(plain),
        }
    }
    quoted.push('"');
    quoted
}
