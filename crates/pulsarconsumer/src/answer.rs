//! The parts of the admin API's answers that the manager needs. A user chooses the server, and an answer may be long.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// The form of the broker's answer to a rejected request.
#[derive(Deserialize)]
pub struct Rejection {
    #[serde(rename = "reason")]
    _reason: IgnoredAny,
}

/// Reads the first names for which the function returns true, at most this number.
pub struct Names<F>(pub F, pub usize);

impl<'de, F: Fn(&str) -> bool> Visitor<'de> for Names<F> {
    type Value = Vec<String>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list of topics")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut names: A) -> Result<Vec<String>, A::Error> {
        let mut kept = Vec::new();
        while let Some(name) = names.next_element::<String>()? {
            if kept.len() < self.1 && self.0(&name) {
                kept.push(name);
            }
        }
        Ok(kept)
    }
}

/// Reads only the member with this name, because there may be hundreds of thousands.
pub struct Named<'a, T>(pub &'a str, pub PhantomData<T>);

impl<'de, T: Deserialize<'de>> DeserializeSeed<'de> for Named<'_, T> {
    type Value = Option<T>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for Named<'_, T> {
    type Value = Option<T>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a map")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
        let mut found = None;
        while let Some(name) = map.next_key::<Cow<'de, str>>()? {
            if name == self.0 {
                found = Some(map.next_value()?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }
}
