//! The table of settings: a row is all that has to be written of a setting, beside the code that uses it. From a row come
//! the flag, the environment variable and their help, the key in `sluiced.toml` and its check, the field of [`Config`],
//! what `--print-config` shows, and the key's place in the sample file.

use std::{
    path::PathBuf,
    sync::{Arc, LazyLock},
};

use sluice_hub::Access;
use sluice_shared::{
    level::{CpuExperts, EmbeddingPlacement, KvCacheFormat, Level},
    options::Budget,
    preset::Preset,
};

use super::{
    ComputeDtype, ConfigError, Device, DiskReadLimit, Folders, HttpListen, IdleUnload,
    InstructionsChoice, Listen, LoadedModelsMax, LogFilter, LogFormat, MaxSlowdown, MemoryFile,
    ModelsFile, OptionalPath, PinnedMemoryLimit, Setting, SettingSource, SocketPath, Threads,
    WebOrigins, WeightCacheLimit, Within,
    layers::{
        self,
        BuiltIn::{self, BySize, Computed, Is},
        Layers,
    },
    row::{SettingRow, ValueForm},
    values::Value,
};
use crate::{memory::EncoderChoice, role::RoleRules};

impl SettingRow {
    fn new<T: Value>(
        key: &'static str,
        docs: &'static str,
        value_name: &'static str,
        form: ValueForm,
        built_in: &BuiltIn<T>,
    ) -> Self {
        let (default, example) = match *built_in {
            Is(text) => (text, text),
            BySize { usual, words, .. } => (words, usual),
            Computed { words, example, .. } => (words, example),
        };
        Self {
            key,
            // Clap wants names that live as long as the program; the table is made once.
            flag: format!("--{}", key.replace('_', "-")).leak(),
            variable: format!("SLUICE_{}", key.to_ascii_uppercase()).leak(),
            docs,
            value_name,
            form,
            default,
            example,
            check: |text| T::read(text).map(drop),
        }
    }

    /// The row of this key.
    pub(super) fn find(key: &str) -> Option<&'static Self> {
        ROWS.iter().find(|row| row.key == key)
    }
}

/// Makes [`ROWS`] and [`Config`] of the rows.
macro_rules! settings {
    ($(
        $(#[doc = $docs:literal])+
        $key:ident: $type:ty {
            value: $value_name:literal,
            form: $form:ident,
            built_in: $built_in:expr $(,)?
        }
    )+) => {
        /// Every setting, in the order in which people see them.
        pub(super) static ROWS: LazyLock<Vec<SettingRow>> = LazyLock::new(|| vec![$(SettingRow::new::<$type>(
            stringify!($key),
            concat!($($docs, "\n"),+),
            $value_name,
            ValueForm::$form,
            &$built_in,
        )),+]);

        /// Everything the daemon can be told, checked.
        #[derive(Debug)]
        pub struct Config {
            $($(#[doc = $docs])+ pub $key: Setting<$type>,)+
            /// What holds for single models.
            pub model_settings: Arc<ModelsFile>,
            /// The hub that models come from, by the variables that its own programs know.
            pub hub: Access,
            /// Where those programs keep what they downloaded.
            pub hub_cache: Option<PathBuf>,
        }

        impl Config {
            /// The settings by these layers, each checked by itself.
            pub(super) fn of(
                layers: &Layers<'_>,
                model_settings: Arc<ModelsFile>,
                hub: Access,
                hub_cache: Option<PathBuf>,
            ) -> Result<Self, ConfigError> {
                Ok(Self {
                    $($key: layers.setting(stringify!($key), &$built_in)?,)+
                    model_settings,
                    hub,
                    hub_cache,
                })
            }

            /// The rows with the values in force, as people write them, and where those come from.
            pub(super) fn shown(&self) -> impl Iterator<Item = (&'static SettingRow, Option<String>, &SettingSource)> {
                let shown = [$((self.$key.value.text(), &self.$key.source)),+];
                ROWS.iter().zip(shown).map(|(row, (text, source))| (row, text, source))
            }
        }
    };
}

settings! {
    /// Checkpoint to serve: a Hugging Face folder, a .safetensors file in one, or a .gguf, .pth or .sluice file
    ///
    /// The daemon's user must be able to read it. A model that `sluice load --default` named is served instead.
    model: OptionalPath {
        value: "DIR|FILE",
        form: Path,
        built_in: Computed {
            compute: |_| OptionalPath(None),
            words: "the small demonstration model inside this program",
            example: "/var/lib/sluice/models/GSAI-ML/LLaDA-8B-Instruct",
        },
    }

    /// Unix socket to listen on
    ///
    /// The unit sets SLUICE_SOCKET, and a socket from systemd outweighs all.
    socket: SocketPath {
        value: "PATH",
        form: Path,
        built_in: Computed {
            compute: layers::default_socket,
            words: "/run/sluice/sluice.sock if it exists, else $XDG_RUNTIME_DIR/sluice/sluice.sock, else a private \
                folder under the temporary one",
            example: "/run/sluice/sluice.sock",
        },
    }

    /// Address to listen on beside the socket, such as 127.0.0.1:50051, or none; port 0 takes any free port and prints it.
    /// On a loopback address every user of this machine can connect; what they may do, `roles` and `token_file` say
    ///
    /// An address that other machines can reach, such as 0.0.0.0:50051, takes `tls_certificate` and `tls_key`, and `token_file` or
    /// `tls_client_ca`. The unit's sandbox must allow the port: see sluice.service.d/listen.conf and tls.conf.
    listen: Listen {
        value: "ADDRESS|none",
        form: Text,
        built_in: Is("none"),
    }

    /// Certificate for TLS on the port: a PEM file, the daemon's own first and then those that sign it
    ///
    /// Read again when it changes, as are the next two and `token_file`.
    tls_certificate: OptionalPath {
        value: "FILE",
        form: Path,
        built_in: Computed {
            compute: |layers| layers::credential(layers, "tls.crt"),
            words: "$CREDENTIALS_DIRECTORY/tls.crt if it exists",
            example: "/etc/sluice/tls.crt",
        },
    }

    /// Private key of that certificate: a PEM file, which only the daemon's user and group may be able to read
    tls_key: OptionalPath {
        value: "FILE",
        form: Path,
        built_in: Computed {
            compute: |layers| layers::credential(layers, "tls.key"),
            words: "$CREDENTIALS_DIRECTORY/tls.key if it exists",
            example: "/etc/sluice/tls.key",
        },
    }

    /// Certificates of those who sign clients' certificates: a PEM file; `roles` gives roles to such clients
    tls_client_ca: OptionalPath {
        value: "FILE",
        form: Path,
        built_in: Computed {
            compute: |layers| layers::credential(layers, "client-ca.crt"),
            words: "$CREDENTIALS_DIRECTORY/client-ca.crt if it exists",
            example: "/etc/sluice/client-ca.crt",
        },
    }

    /// Address to serve HTTP on, such as 127.0.0.1:8080, or none: OpenAI's and Ollama's APIs; port 0 takes any free port and
    /// prints it
    ///
    /// Only a daemon that was built with the feature http has it. Who can connect, what an address takes that other machines can
    /// reach, and the sandbox are as with `listen`. See docs/http.md.
    http: HttpListen {
        value: "ADDRESS|none",
        form: Text,
        built_in: Is("none"),
    }

    /// Web pages that may call the HTTP port, by their origins, such as `https://chat.example`; separated by commas
    ///
    /// Requests of other pages are refused.
    http_origins: WebOrigins {
        value: "ORIGIN,ORIGIN|none",
        form: Text,
        built_in: Is("none"),
    }

    /// Who may do what: roles with users, @groups, cert:NAME or * for everybody, such as "generate=*; operate=alice; admin=@wheel"
    ///
    /// Roles are observe, generate, operate and admin, each with what those before it may do. Root and the daemon's own user are
    /// administrators. On a loopback port, callers without a token are everybody; from other machines nobody is. cert:NAME is
    /// who brings a certificate with that DNS name, cert:* whoever brings one; see `tls_client_ca` and docs/peers.md.
    roles: RoleRules {
        value: "RULES",
        form: Text,
        built_in: Is("generate=*; admin=@sluice-admin"),
    }

    /// File of tokens for callers on the port, a line each: ROLE TOKEN
    ///
    /// Only the daemon's user and group may be able to read it.
    token_file: OptionalPath {
        value: "FILE",
        form: Path,
        built_in: Computed {
            compute: |layers| layers::credential(layers, "tokens"),
            words: "$CREDENTIALS_DIRECTORY/tokens if it exists",
            example: "/etc/sluice/tokens",
        },
    }

    /// Folders below which callers with the role operate may name models and files, beside those of downloads; separated by :
    ///
    /// Administrators may name any path that the daemon's user can open.
    model_folders: Folders {
        value: "DIR:DIR|none",
        form: Text,
        built_in: Is("none"),
    }

    /// Where to compute: auto (the first usable NVIDIA GPU, else the CPU), cpu, or cuda:N (that GPU and nothing else)
    ///
    /// Without the GPU that cuda:N names, the daemon doesn't start, and says why. GPUs are counted as
    /// CUDA_VISIBLE_DEVICES shows them.
    device: Device {
        value: "DEVICE",
        form: Text,
        built_in: Is("auto"),
    }

    /// Dtype to compute in: f32, f16, bf16, or auto (a GPU: bf16 where it has it, else f16; the CPU: f32); sums are f32
    ///
    /// With bf16, the CPU rounds what it multiplies, but for weights in blocks: 2 to 3 times as fast where it has AVX-512's
    /// products of bf16, and no answer is exact. It has no f16, and takes f32.
    compute_dtype: ComputeDtype {
        value: "DTYPE",
        form: Text,
        built_in: Is("auto"),
    }

    /// Vector instructions that the CPU computes with: portable, avx2, avx-vnni, avx512, avx512-vnni, avx512-bf16, amx, or auto
    /// for the best that work
    ///
    /// With a name that doesn't work here the daemon doesn't start, and says which do.
    instructions: InstructionsChoice {
        value: "NAME",
        form: Text,
        built_in: Is("auto"),
    }

    /// Threads that compute
    ///
    /// With a GPU, they convert weights. 1 to 1024.
    threads: Threads {
        value: "N",
        form: Number,
        built_in: Computed {
            compute: |layers| Within(layers.environment.cores),
            words: "one a core",
            example: "8",
        },
    }

    /// Fidelity of the weights: off, standard, mild (or lossless), moderate (or q8), aggressive (or q4) or auto
    level: Level {
        value: "LEVEL",
        form: Text,
        built_in: BySize {
            usual: "standard",
            small: "aggressive",
            words: "standard; with --small-memory aggressive",
        },
    }

    /// Defaults for little memory: level aggressive, and for masked diffusion models 64 tokens, at most 32 in a block, and at
    /// most 64 steps, within which that level's text holds up
    ///
    /// Whatever else sets one of them wins: other settings, a model's own, and each request.
    small_memory: bool {
        value: "true|false",
        form: Boolean,
        built_in: Is("false"),
    }

    /// Limit for the device's memory, such as 4GiB, or default for what is free when the daemon starts, less a margin;
    /// weights that don't fit are streamed
    budget: Budget {
        value: "BYTES|default",
        form: Text,
        built_in: Is("default"),
    }

    /// Limit for reading streamed weights, such as 500MB/s, or none; it leaves the disk to others
    disk_read_limit: DiskReadLimit {
        value: "RATE|none",
        form: Text,
        built_in: Is("none"),
    }

    /// Limit for pinned (page-locked) host memory used to stream weights to the GPU, such as 16GiB, or auto for at most half
    /// of the host's memory; no other program gets this memory
    ///
    /// With auto it is also at most three quarters of what is free.
    pinned_memory_limit: PinnedMemoryLimit {
        value: "BYTES|auto",
        form: Text,
        built_in: Is("auto"),
    }

    /// Where the embedding is kept: host, device, or auto (on the host at every level but off)
    embedding: EmbeddingPlacement {
        value: "PLACE",
        form: Text,
        built_in: Is("auto"),
    }

    /// How many times as long as at the fastest level a pass may take at level auto, for the sake of fidelity
    max_slowdown: MaxSlowdown {
        value: "FACTOR",
        form: Number,
        built_in: Is("1.5"),
    }

    /// Format of an autoregressive model's KV cache: f32, bf16, q8_0, q5_0, q4_0 (8, 5, 4 bits; less memory, less exact), or auto
    /// for bf16, on a GPU for the dtype it computes in
    kv_cache_format: KvCacheFormat {
        value: "FORMAT",
        form: Text,
        built_in: Is("auto"),
    }

    /// Whether the CPU computes some of a mixture's experts beside a GPU without room for all: off, or auto for where that is faster;
    /// answers are not called exact then
    cpu_experts: CpuExperts {
        value: "WHEN",
        form: Text,
        built_in: Is("off"),
    }

    /// Default quality preset for requests that don't set one: exact, quality, balanced, fast or auto; `sluice generate --help`
    /// describes each
    preset: Preset {
        value: "PRESET",
        form: Text,
        built_in: Is("exact"),
    }

    /// Folder for converted weights, which later level switches and loads read, and streaming at some levels
    ///
    /// The unit gives the daemon this one by CacheDirectory=.
    weight_cache: OptionalPath {
        value: "DIR",
        form: Path,
        built_in: Computed {
            compute: layers::default_weight_cache,
            words: "$CACHE_DIRECTORY, else $XDG_CACHE_HOME/sluice, else ~/.cache/sluice",
            example: "/var/cache/sluice",
        },
    }

    /// Keep all weights that a level converts, so that the next level switch or load reads them; with false, only weights
    /// that are streamed are written
    keep_converted: bool {
        value: "true|false",
        form: Boolean,
        built_in: Computed {
            compute: layers::has_weight_cache,
            words: "true if there is a folder",
            example: "true",
        },
    }

    /// Limit for the size of the converted weights, such as 32GiB, or none; the least recently used are deleted first, those
    /// in use never
    weight_cache_limit: WeightCacheLimit {
        value: "BYTES|none",
        form: Text,
        built_in: Is("32GiB"),
    }

    /// Folder that models are downloaded into
    ///
    /// The unit gives the daemon this one by StateDirectory=.
    models: OptionalPath {
        value: "DIR",
        form: Path,
        built_in: Computed {
            compute: layers::default_models_folder,
            words: "models below $STATE_DIRECTORY, else below $XDG_DATA_HOME/sluice, else below ~/.local/share/sluice",
            example: "/var/lib/sluice/models",
        },
    }

    /// File of what is remembered (`sluice memory`), or none; it is made with the first source
    memory: MemoryFile {
        value: "FILE|none",
        form: Path,
        built_in: Computed {
            compute: layers::default_memory,
            words: "memory.sqlite below $STATE_DIRECTORY, else below $XDG_DATA_HOME/sluice, else below ~/.local/share/sluice",
            example: "/var/lib/sluice/memory.sqlite",
        },
    }

    /// Model that makes vectors of what is remembered, which is loaded for it: its name; auto: the sentence encoder that is
    /// loaded; or off
    memory_encoder: EncoderChoice {
        value: "auto|off|NAME",
        form: Text,
        built_in: Is("auto"),
    }

    /// Unload the model after this time without requests, such as 15m; the next request loads it again
    idle_unload: IdleUnload {
        value: "TIME|never",
        form: Text,
        built_in: Computed {
            compute: layers::default_idle_unload,
            words: "never",
            example: "never",
        },
    }

    /// Models that may be loaded at once, within one budget; for one more the least recently used is evicted
    ///
    /// 1 to 16. 1: a load takes the present model's place.
    loaded_models: LoadedModelsMax {
        value: "N",
        form: Number,
        built_in: BySize {
            usual: "3",
            small: "1",
            words: "3; with --small-memory 1",
        },
    }

    /// Let requests load the models that they name
    ///
    /// false: only models that were loaded before.
    load_on_request: bool {
        value: "true|false",
        form: Boolean,
        built_in: Is("true"),
    }

    /// Requests that may wait while others run
    ///
    /// 1 to 1024; more wait in a line of the daemon.
    queue: Within<1, 1024> {
        value: "N",
        form: Number,
        built_in: Is("16"),
    }

    /// Limit for requests that share a pass over the weights; each that joins takes memory for its canvas
    ///
    /// 1 to 64: each writes slower then, all together faster.
    parallel: Within<1, { sluice_engine::PARALLEL_MAX }> {
        value: "N",
        form: Number,
        built_in: Is("4"),
    }

    /// Seconds that running requests get to finish on shutdown
    ///
    /// 0 to 3600. With more than 40, raise TimeoutStopSec= in the unit as well.
    drain_seconds: Within<0, 3600> {
        value: "N",
        form: Number,
        built_in: Is("10"),
    }

    /// What to log: a tracing filter such as info or info,sluice_daemon=debug
    log: LogFilter {
        value: "FILTER",
        form: Text,
        built_in: Is("info"),
    }

    /// Form of the log: text, or json for one object a line, with a request's id as `request`
    log_format: LogFormat {
        value: "FORMAT",
        form: Text,
        built_in: Is("text"),
    }
}
