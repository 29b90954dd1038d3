//! Values of the configuration that are more than a number or a path.

use std::{fmt, net::SocketAddr, str::FromStr, time::Duration};

use serde::{Deserialize, Deserializer, de::Error as _};
use sluice_ops::device::{self, Number};
use sluice_shared::{
    level::{AUTO_FACTOR, check_auto_factor, parse_auto_factor},
    units,
};
use tracing_subscriber::EnvFilter;

/// Where to compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Device {
    /// The first card that can be used, else the CPU.
    Auto,
    /// The CPU.
    Cpu,
    /// A graphics card, by its number.
    Cuda(u32),
}

impl Device {
    /// The same as the engine takes it.
    #[must_use]
    pub fn choice(self) -> device::Choice {
        match self {
            Self::Auto => device::Choice::Auto,
            Self::Cpu => device::Choice::Cpu,
            Self::Cuda(index) => device::Choice::Cuda(index as usize),
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

impl TryFrom<String> for Device {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
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

/// What a card computes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compute {
    /// What suits it best: `bf16`, or `f16` where it has none.
    Auto,
    /// This.
    Number(Number),
}

impl Compute {
    /// The numbers, unless the card is to decide.
    #[must_use]
    pub fn number(self) -> Option<Number> {
        match self {
            Self::Auto => None,
            Self::Number(number) => Some(number),
        }
    }
}

impl FromStr for Compute {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        let number = Number::ALL.into_iter().find(|number| number.name() == text);
        number
            .map(Self::Number)
            .ok_or_else(|| format!("'{text}' is none of auto, f32, f16, bf16"))
    }
}

impl fmt::Display for Compute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.number().map_or("auto", Number::name))
    }
}

/// Most bytes of the device's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Budget(Option<u64>);

impl Budget {
    /// The bytes; `None`: what is free when the daemon starts, less a margin.
    #[must_use]
    pub fn bytes(self) -> Option<u64> {
        self.0
    }
}

impl From<Option<u64>> for Budget {
    fn from(bytes: Option<u64>) -> Self {
        Self(bytes)
    }
}

impl FromStr for Budget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.trim() == "default" {
            return Ok(Self(None));
        }
        match units::parse_bytes(text)? {
            0 => Err(format!("{text:?} leaves no memory to use")),
            bytes => Ok(Self(Some(bytes))),
        }
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("default"),
            Some(bytes) => f.write_str(&exactly(bytes)),
        }
    }
}

/// How much longer a pass may take at level `auto` than the fastest level's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AutoFactor(pub f64);

impl Default for AutoFactor {
    fn default() -> Self {
        Self(AUTO_FACTOR)
    }
}

impl FromStr for AutoFactor {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse_auto_factor(text).map(Self)
    }
}

impl<'de> Deserialize<'de> for AutoFactor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let factor = f64::deserialize(deserializer)?;
        check_auto_factor(factor)
            .map(Self)
            .map_err(D::Error::custom)
    }
}

/// Most bytes a second that are read of weights that are streamed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReadLimit(Option<u64>);

impl ReadLimit {
    /// The bytes a second; `None`: any.
    #[must_use]
    pub fn bytes_per_s(self) -> Option<u64> {
        self.0
    }
}

impl FromStr for ReadLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.trim() == "none" {
            return Ok(Self(None));
        }
        match units::parse_rate(text)? {
            0 => Err(format!(
                "{text:?} lets nothing be read; \"none\" is no limit"
            )),
            bytes => Ok(Self(Some(bytes))),
        }
    }
}

impl fmt::Display for ReadLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("none"),
            Some(bytes) => write!(f, "{}/s", exactly(bytes)),
        }
    }
}

/// Most bytes of the host's memory that are pinned for a card to copy streamed weights from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PinLimit(Option<u64>);

impl PinLimit {
    /// The bytes; `None`: what the engine finds right for the machine.
    #[must_use]
    pub fn bytes(self) -> Option<u64> {
        self.0
    }
}

impl FromStr for PinLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim() {
            "auto" => Ok(Self(None)),
            text => units::parse_bytes(text).map(|bytes| Self(Some(bytes))),
        }
    }
}

impl fmt::Display for PinLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("auto"),
            Some(bytes) => f.write_str(&exactly(bytes)),
        }
    }
}

/// A port of the loopback interface to listen on beside the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Listen(Option<SocketAddr>);

impl Listen {
    /// The address; `None`: the socket alone.
    #[must_use]
    pub fn address(self) -> Option<SocketAddr> {
        self.0
    }
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text == "none" {
            return Ok(Self(None));
        }
        let numeric = match text.strip_prefix("localhost:") {
            Some(port) => format!("127.0.0.1:{port}"),
            None => text.to_owned(),
        };
        let address: SocketAddr = numeric.parse().map_err(|_| {
            format!(
                "`{text}` is no address with a port; write 127.0.0.1:PORT or [::1]:PORT (port 0: any that is free), or none"
            )
        })?;
        match address.ip().is_loopback() {
            true => Ok(Self(Some(address))),
            false => Err(format!(
                "{address} can be reached from other machines, and sluiced doesn't ask who calls: listen on 127.0.0.1:{port}, and \
                 come from elsewhere through a tunnel, such as `ssh -L {port}:127.0.0.1:{port} HOST`",
                port = address.port()
            )),
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("none"),
            Some(address) => address.fmt(f),
        }
    }
}

/// After how long without requests the model is let go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IdleUnload(Option<Duration>);

impl IdleUnload {
    /// Where a daemon was started on the way to an answer: nobody thinks of it any more when the answers are over.
    pub(super) const IN_BACKGROUND: Self = Self(Some(Duration::from_secs(15 * 60)));

    /// The time; `None`: never.
    #[must_use]
    pub fn after(self) -> Option<Duration> {
        self.0
    }
}

impl FromStr for IdleUnload {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.trim() == "never" {
            return Ok(Self(None));
        }
        let duration = units::parse_duration(text)?;
        match duration.is_zero() {
            true => Err("must be longer than nothing; \"never\" turns it off".to_owned()),
            false => Ok(Self(Some(duration))),
        }
    }
}

impl fmt::Display for IdleUnload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.map(|after| (after.as_millis(), after.as_secs())) {
            None => f.write_str("never"),
            Some((millis, _)) if !millis.is_multiple_of(1000) => write!(f, "{millis}ms"),
            Some((_, seconds)) if seconds.is_multiple_of(3600) => write!(f, "{}h", seconds / 3600),
            Some((_, seconds)) if seconds.is_multiple_of(60) => write!(f, "{}m", seconds / 60),
            Some((_, seconds)) => write!(f, "{seconds}s"),
        }
    }
}

/// Most bytes that converted copies of checkpoints take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheLimit(Option<u64>);

impl CacheLimit {
    /// The bytes; `None`: any.
    #[must_use]
    pub fn bytes(self) -> Option<u64> {
        self.0
    }
}

impl Default for CacheLimit {
    /// A model of eight billion parameters at two levels takes 12 GiB: two of them, and some small ones.
    fn default() -> Self {
        Self(Some(32 << 30))
    }
}

impl FromStr for CacheLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim() {
            "none" => Ok(Self(None)),
            text => units::parse_bytes(text).map(|bytes| Self(Some(bytes))),
        }
    }
}

impl fmt::Display for CacheLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("none"),
            Some(bytes) => f.write_str(&exactly(bytes)),
        }
    }
}

/// An amount as people write it, if that is read back as the same, else its bytes.
fn exactly(bytes: u64) -> String {
    let rounded = units::bytes_to_type(bytes);
    match units::parse_bytes(&rounded) == Ok(bytes) {
        true => rounded,
        false => bytes.to_string(),
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
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Filter(String);

impl Filter {
    /// The filter as tracing uses it.
    #[must_use]
    pub fn to_env_filter(&self) -> EnvFilter {
        EnvFilter::try_new(&self.0).expect("was parsed when it was made")
    }
}

impl Default for Filter {
    fn default() -> Self {
        Self("info".to_owned())
    }
}

impl FromStr for Filter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        EnvFilter::try_new(text).map_err(|error| format!("'{text}' is no log filter: {error}"))?;
        Ok(Self(text.to_owned()))
    }
}

impl TryFrom<String> for Filter {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
