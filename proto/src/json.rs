//! How generated types are written as JSON, and how those of a saved run are read back.
//! `docs/json.md` says what that looks like.
//!
//! `build.rs` gives generated types the attributes that name the functions of this module.

use std::marker::PhantomData;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::IntoDeserializer};

/// An enum's field, which is generated as its number.
pub(crate) struct Named<E>(PhantomData<E>);

impl<E> Named<E> {
    pub(crate) fn serialize<F: Numbers, S: Serializer>(field: &F, to: S) -> Result<S::Ok, S::Error>
    where
        E: TryFrom<i32> + Default,
        F::Names<Name<E>>: Serialize,
    {
        field
            // A value of a newer daemon is written as the unspecified one, so that scripts get the rest of the object.
            .names(|number| Name(E::try_from(number).unwrap_or_default()))
            .serialize(to)
    }

    pub(crate) fn deserialize<'de, F: Numbers, D: Deserializer<'de>>(from: D) -> Result<F, D::Error>
    where
        E: Into<i32>,
        F::Names<Name<E>>: Deserialize<'de>,
    {
        let names = F::Names::<Name<E>>::deserialize(from)?;
        Ok(F::numbers(names, |Name(value)| value.into()))
    }
}

/// A field of an enum: one, perhaps one, or many.
pub(crate) trait Numbers {
    type Names<N>;
    fn names<N>(&self, name: impl Fn(i32) -> N) -> Self::Names<N>;
    fn numbers<N>(names: Self::Names<N>, number: impl Fn(N) -> i32) -> Self;
}

impl Numbers for i32 {
    type Names<N> = N;
    fn names<N>(&self, name: impl Fn(i32) -> N) -> N {
        name(*self)
    }
    fn numbers<N>(names: N, number: impl Fn(N) -> i32) -> Self {
        number(names)
    }
}

impl Numbers for Option<i32> {
    type Names<N> = Option<N>;
    fn names<N>(&self, name: impl Fn(i32) -> N) -> Option<N> {
        self.map(name)
    }
    fn numbers<N>(names: Option<N>, number: impl Fn(N) -> i32) -> Self {
        names.map(number)
    }
}

impl Numbers for Vec<i32> {
    type Names<N> = Vec<N>;
    fn names<N>(&self, name: impl Fn(i32) -> N) -> Vec<N> {
        self.iter().copied().map(name).collect()
    }
    fn numbers<N>(names: Vec<N>, number: impl Fn(N) -> i32) -> Self {
        names.into_iter().map(number).collect()
    }
}

/// A value of an enum by its name. One that is not known is read as the unspecified one.
#[derive(Serialize)]
#[serde(transparent)]
pub(crate) struct Name<E>(E);

impl<'de, E: Deserialize<'de> + Default> Deserialize<'de> for Name<E> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let name = String::deserialize(from)?;
        let known: Result<E, serde::de::value::Error> = E::deserialize(name.into_deserializer());
        Ok(Self(known.unwrap_or_default()))
    }
}

/// Bytes that are text.
pub(crate) mod text {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        String::from_utf8_lossy(bytes).serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        String::deserialize(from).map(String::into_bytes)
    }
}

/// The bytes of a token: `piece`, and beside it `bytes` where the piece is no text.
pub(crate) mod piece {
    use std::borrow::Cow;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize, Default)]
    #[serde(default)]
    struct Piece<'a> {
        piece: Cow<'a, str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        bytes: Option<Cow<'a, [u8]>>,
    }

    pub(crate) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        let piece = String::from_utf8_lossy(bytes);
        // `from_utf8_lossy` borrows exactly where nothing had to be replaced.
        let is_text = matches!(piece, Cow::Borrowed(_));
        let bytes = (!is_text).then_some(Cow::Borrowed(bytes));
        Piece { piece, bytes }.serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        let Piece { piece, bytes } = Piece::deserialize(from)?;
        // `bytes` go first: where they are given, the piece has replacement characters.
        Ok(bytes.map_or_else(|| piece.into_owned().into_bytes(), Cow::into_owned))
    }
}

/// A hash, whose digits mean nothing as a number.
pub(crate) mod hash {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer>(hash: &u64, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{hash:016x}"))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        u64::from_str_radix(&String::deserialize(from)?, 16).map_err(D::Error::custom)
    }
}

/// Milliseconds as they are shared out and added up elsewhere: none below zero.
pub(crate) fn milliseconds<'de, T, D>(from: D) -> Result<T, D::Error>
where
    T: From<f64> + Default,
    D: Deserializer<'de>,
{
    let ms = Option::<f64>::deserialize(from)?;
    // A negative time in a saved run once ended the client in the middle of its screen.
    Ok(ms.map_or_else(T::default, |ms| ms.max(0.0).into()))
}

/// What is no probability is unknown.
pub(crate) fn probability<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f32>, D::Error> {
    let known = Option::<f32>::deserialize(from)?;
    Ok(known.filter(|p| (0.0..=1.0).contains(p)))
}
