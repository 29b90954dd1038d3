//! Values of the configuration that are more than a number or a path.

use std::{
    ffi::OsStr,
    fmt,
    net::SocketAddr,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use serde::{Deserialize, Deserializer, de::Error as _};
use sluice_formats::DType;
use sluice_machine::{InstructionSet, Instructions};
use sluice_ops::device;
use sluice_shared::{level::parse_max_slowdown, origin::Origin, units};
use tracing_subscriber::EnvFilter;

use crate::limits::LOADED_MODELS_MAX;

/// A value that a layer names as text. A type that has [`FromStr`] and [`fmt::Display`] is one.
pub(super) trait Value: Sized {
    /// Reads the text of a layer; a path is absolute.
    fn read(text: &OsStr) -> Result<Self, String>;

    /// The value as it is read; `None` where there is none.
    fn text(&self) -> Option<String>;
}

impl<T: FromStr<Err: fmt::Display> + fmt::Display> Value for T {
    fn read(text: &OsStr) -> Result<Self, String> {
        let parsed = text.to_string_lossy().parse();
        parsed.map_err(|error: T::Err| error.to_string())
    }

    fn text(&self) -> Option<String> {
        Some(self.to_string())
    }
}

/// A file or folder, where there is one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OptionalPath(pub Option<PathBuf>);

impl Value for OptionalPath {
    fn read(text: &OsStr) -> Result<Self, String> {
        Ok(Self(Some(text.into())))
    }

    fn text(&self) -> Option<String> {
        let path = self.0.as_ref()?;
        Some(path.to_string_lossy().into_owned())
    }
}

/// The file of what is remembered, or `none`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MemoryFile(pub Option<PathBuf>);

impl Value for MemoryFile {
    fn read(text: &OsStr) -> Result<Self, String> {
        // A relative path has become absolute before.
        let is_none = Path::new(text).file_name() == Some(OsStr::new("none"));
        Ok(Self((!is_none).then(|| text.into())))
    }

    fn text(&self) -> Option<String> {
        Some(match &self.0 {
            Some(path) => path.to_string_lossy().into_owned(),
            None => "none".to_owned(),
        })
    }
}

/// Folders by their absolute paths, separated by colons, or `none`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Folders(Vec<PathBuf>);

impl Folders {
    /// Folders that a setting may name.
    const MAX: usize = 64;

    /// The folders.
    #[must_use]
    pub fn folders(&self) -> &[PathBuf] {
        &self.0
    }
}

impl FromStr for Folders {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = text
            .split(':')
            .filter(|_| text != "none")
            .map(PathBuf::from);
        let folders: Vec<_> = named.collect();
        if let Some(relative) = folders.iter().find(|folder| !folder.is_absolute()) {
            return Err(format!("'{}' is not an absolute path", relative.display()));
        }
        match folders.len() {
            0..=Self::MAX => Ok(Self(folders)),
            more => Err(format!("{more} folders are more than {}", Self::MAX)),
        }
    }
}

impl fmt::Display for Folders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self
            .0
            .iter()
            .map(|folder| folder.to_string_lossy())
            .collect();
        match names.is_empty() {
            true => f.write_str("none"),
            false => f.write_str(&names.join(":")),
        }
    }
}

/// Origins of web pages, separated by commas, or `none`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WebOrigins(Vec<Origin>);

impl WebOrigins {
    /// Origins that a setting may name.
    const MAX: usize = 64;

    /// The origins.
    #[must_use]
    pub fn origins(&self) -> &[Origin] {
        &self.0
    }
}

impl FromStr for WebOrigins {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = text.split(',').filter(|_| text != "none");
        let origins: Vec<Origin> = named
            .map(|origin| origin.trim().parse())
            .collect::<Result<_, _>>()?;
        match origins.len() {
            0..=Self::MAX => Ok(Self(origins)),
            more => Err(format!("{more} origins are more than {}", Self::MAX)),
        }
    }
}

impl fmt::Display for WebOrigins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.0.iter().map(Origin::as_str).collect();
        match names.is_empty() {
            true => f.write_str("none"),
            false => f.write_str(&names.join(",")),
        }
    }
}

/// A socket's path, and what may be done to the folder it lies in.
#[derive(Debug, Clone, PartialEq)]
pub struct SocketPath {
    /// Path of the Unix socket.
    pub path: PathBuf,
    /// The folder around it.
    pub folder: SocketFolder,
}

impl Value for SocketPath {
    fn read(text: &OsStr) -> Result<Self, String> {
        Ok(Self {
            path: text.into(),
            folder: SocketFolder::Given,
        })
    }

    fn text(&self) -> Option<String> {
        Some(self.path.to_string_lossy().into_owned())
    }
}

/// How the socket's folder is treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketFolder {
    /// Somebody else's: it has to be there.
    Given,
    /// Ours, in a place that only this user can write to: made when missing.
    Ours,
    /// Ours, in a place that everybody can write to: made when missing, refused when
    /// somebody else made it.
    OursInPublic,
}

/// A whole number within bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Within<const MIN: usize, const MAX: usize>(pub(super) usize);

/// Threads that compute; no machine has more cores.
pub type Threads = Within<1, 1024>;

/// Models that may be loaded at once.
pub type LoadedModelsMax = Within<1, LOADED_MODELS_MAX>;

impl<const MIN: usize, const MAX: usize> Within<MIN, MAX> {
    /// The value, which is within the setting's bounds.
    #[must_use]
    pub fn get(self) -> usize {
        self.0
    }
}

impl<const MIN: usize, const MAX: usize> FromStr for Within<MIN, MAX> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number: i64 = (text.parse()).map_err(|_| format!("{text:?} is not a whole number"))?;
        match usize::try_from(number) {
            Ok(inside) if (MIN..=MAX).contains(&inside) => Ok(Self(inside)),
            _ => Err(format!("must be between {MIN} and {MAX}, not {number}")),
        }
    }
}

impl<const MIN: usize, const MAX: usize> fmt::Display for Within<MIN, MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Where to compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Device {
    /// The first usable GPU, else the CPU.
    Auto,
    /// The CPU computes, even where a GPU could.
    Cpu,
    /// An NVIDIA GPU, by its CUDA ordinal.
    Cuda(u32),
}

impl Device {
    /// The same as the engine takes it.
    #[must_use]
    pub fn choice(self) -> device::DeviceChoice {
        match self {
            Self::Auto => device::DeviceChoice::Auto,
            Self::Cpu => device::DeviceChoice::Cpu,
            Self::Cuda(index) => device::DeviceChoice::Cuda(index as usize),
        }
    }
}

impl FromStr for Device {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda(0)),
            _ => text
                .strip_prefix("cuda:")
                .and_then(|index| index.parse().ok())
                .map(Self::Cuda)
                .ok_or_else(|| format!("'{text}' is none of auto, cpu, cuda:N")),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(index) => write!(f, "cuda:{index}"),
        }
    }
}

/// The dtype that a GPU computes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ComputeDtype {
    /// What suits it best: `bf16`, or `f16` where it has none.
    Auto,
    /// This dtype, on any GPU that supports it.
    Dtype(DType),
}

impl ComputeDtype {
    /// The dtype; `None` where the GPU decides.
    #[must_use]
    pub fn dtype(self) -> Option<DType> {
        match self {
            Self::Auto => None,
            Self::Dtype(number) => Some(number),
        }
    }
}

impl FromStr for ComputeDtype {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        let number = DType::ALL.into_iter().find(|number| number.name() == text);
        number
            .map(Self::Dtype)
            .ok_or_else(|| format!("'{text}' is none of auto, f32, f16, bf16"))
    }
}

impl fmt::Display for ComputeDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.dtype().map_or("auto", DType::name))
    }
}

/// The vector instructions that the CPU computes with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstructionsChoice {
    /// The best that work here.
    Auto,
    /// These, although better ones may work.
    Named(Instructions),
}

impl InstructionsChoice {
    /// The instructions.
    #[must_use]
    pub fn instructions(self) -> Instructions {
        match self {
            Self::Auto => Instructions::best(),
            Self::Named(instructions) => instructions,
        }
    }
}

impl FromStr for InstructionsChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        let named = InstructionSet::ALL
            .into_iter()
            .find(|set| set.name() == text);
        let set = named.ok_or_else(|| {
            let all = InstructionSet::ALL.map(InstructionSet::name);
            format!("'{text}' is none of auto, {}", all.join(", "))
        })?;
        Instructions::of(set).map(Self::Named).ok_or_else(|| {
            let all: Vec<_> = Instructions::all().iter().map(|all| all.name()).collect();
            format!(
                "{text} doesn't work on this CPU, which has {}",
                all.join(", ")
            )
        })
    }
}

impl fmt::Display for InstructionsChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Named(instructions) => instructions.name(),
        })
    }
}

/// How much longer a pass may take at level `auto` than the fastest level's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MaxSlowdown(pub f64);

impl FromStr for MaxSlowdown {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse_max_slowdown(text).map(Self)
    }
}

impl fmt::Display for MaxSlowdown {
    /// With its point: a number without one is none of TOML's fractions.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// Makes types for a value or the one word that stands for none. Each names its inner type, the word, the getter, the
/// function that reads a value and the one that shows it as it is read.
macro_rules! optional {
    ($($(#[$docs:meta])+ $name:ident($inner:ty), $word:literal, $getter:ident, $read:expr, $show:expr;)+) => {$(
        $(#[$docs])+
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct $name(Option<$inner>);

        impl $name {
            #[doc = concat!("The value; `None` for `", $word, "`.")]
            #[must_use]
            pub fn $getter(self) -> Option<$inner> {
                self.0
            }
        }

        impl From<Option<$inner>> for $name {
            fn from(value: Option<$inner>) -> Self {
                Self(value)
            }
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                match text.trim() {
                    $word => Ok(Self(None)),
                    text => $read(text).map(|value| Self(Some(value))),
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0.map_or_else(|| $word.to_owned(), $show))
            }
        }
    )+};
}

optional! {
    /// Limit for reading streamed weights.
    DiskReadLimit(u64), "none", bytes_per_s, read_bandwidth, |rate| format!("{}/s", units::bytes_exactly(rate));
    /// Limit for the pinned host memory that weights are streamed to a GPU from; `auto` leaves it to the engine.
    PinnedMemoryLimit(u64), "auto", bytes, units::parse_bytes, units::bytes_exactly;
    /// Limit for the size of converted weights.
    WeightCacheLimit(u64), "none", bytes, units::parse_bytes, units::bytes_exactly;
    /// Address to listen on beside the socket.
    Listen(SocketAddr), "none", address, read_address, |address| address.to_string();
    /// Address to serve HTTP on.
    HttpListen(SocketAddr), "none", address, read_http_address, |address| address.to_string();
    /// Time without requests after which the model is unloaded.
    IdleUnload(Duration), "never", after, read_idle_time, show_duration;
}

/// Whether only this machine reaches the address. That of IPv4 may be written as one of IPv6.
#[must_use]
pub fn is_loopback(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

impl IdleUnload {
    /// Where a daemon was started on the way to an answer: nobody thinks of it any more when the answers are over.
    pub(super) const IN_BACKGROUND: Self = Self(Some(Duration::from_secs(15 * 60)));
}

fn read_bandwidth(text: &str) -> Result<u64, String> {
    match units::parse_bandwidth(text)? {
        0 => Err(format!(
            "{text:?} lets nothing be read; \"none\" is no limit"
        )),
        bytes => Ok(bytes),
    }
}

fn read_address(text: &str) -> Result<SocketAddr, String> {
    let numeric = match text.strip_prefix("localhost:") {
        Some(port) => format!("127.0.0.1:{port}"),
        None => text.to_owned(),
    };
    numeric.parse().map_err(|_| {
        format!(
            "`{text}` is no address with a port; write 127.0.0.1:PORT or [::1]:PORT (port 0: any that is free), or none"
        )
    })
}

fn read_http_address(text: &str) -> Result<SocketAddr, String> {
    match cfg!(feature = "http") {
        true => read_address(text),
        false => Err(
            "this sluiced was built without HTTP; `cargo install --locked --path daemon --features installed` builds and installs \
             one that has it"
                .to_owned(),
        ),
    }
}

fn read_idle_time(text: &str) -> Result<Duration, String> {
    let duration = units::parse_duration(text)?;
    match duration.is_zero() {
        true => Err("must be longer than nothing; \"never\" turns it off".to_owned()),
        false => Ok(duration),
    }
}

fn show_duration(duration: Duration) -> String {
    match (duration.as_millis(), duration.as_secs()) {
        (millis, _) if !millis.is_multiple_of(1000) => format!("{millis}ms"),
        (_, seconds) if seconds.is_multiple_of(3600) => format!("{}h", seconds / 3600),
        (_, seconds) if seconds.is_multiple_of(60) => format!("{}m", seconds / 60),
        (_, seconds) => format!("{seconds}s"),
    }
}

/// Reads from a file's string what is read from a flag's.
pub(crate) fn from_text<'de, D: Deserializer<'de>, T: FromStr<Err: fmt::Display>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map(Some).map_err(D::Error::custom)
}

/// A filter for logs that was found to parse.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogFilter(String);

impl LogFilter {
    /// The filter as tracing uses it.
    #[must_use]
    pub fn to_env_filter(&self) -> EnvFilter {
        EnvFilter::try_new(&self.0).expect("was parsed when it was made")
    }
}

impl FromStr for LogFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        EnvFilter::try_new(text).map_err(|error| format!("'{text}' is no log filter: {error}"))?;
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for LogFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Form of the log's lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// An object a line.
    Json,
}

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(format!("'{text}' is none of text, json")),
        }
    }
}

impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Text => "text",
            Self::Json => "json",
        })
    }
}
