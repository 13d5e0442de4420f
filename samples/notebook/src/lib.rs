//! A key-value store in a field of state: a function that is called by name, and whose entries outlive its instances.
//!
//! ```text
//!   $ pinion invoke notebook --data "put colour blue"
//!   ok
//!   $ pinion invoke notebook --data "get colour"
//!   blue
//! ```
//!
//! See the README for its commands. Its configuration is the name of the field.

#![forbid(unsafe_code)]

use std::fmt::Display;
use std::time::Duration;

use pinion_sdk::state::{Field, StateError, VALUE_BYTES_MAX};
use pinion_sdk::{Batch, Function, InitError, Message, finish};

/// The function.
#[derive(Debug)]
pub struct Notebook {
    notes: Field,
}

impl Function for Notebook {
    fn init(config: &[u8]) -> Result<Self, InitError> {
        let name =
            str::from_utf8(config).map_err(|_| "the configuration is not UTF-8: it is the name of a state field")?;
        Ok(Self { notes: Field::open(name)? })
    }

    fn handle(&mut self, batch: Batch<'_>) {
        // Frames that are not messages are dropped.
        for message in batch.filter_map(|packet| Message::of(packet).ok()) {
            let answer = match str::from_utf8(message.payload()) {
                Ok(order) => self.obey(order).unwrap_or_else(|error| error.to_string()),
                Err(_) => "not UTF-8".to_owned(),
            };
            // A value is always shorter than a message may be.
            let _ = message.answer(answer.as_bytes());
        }
    }
}

impl Notebook {
    fn obey(&self, order: &str) -> Result<String, StateError> {
        let words: Vec<&str> = order.split_ascii_whitespace().collect();
        match words[..] {
            ["get", key] => {
                let mut value = [0; VALUE_BYTES_MAX];
                let value = self.notes.get(key, &mut value)?;
                Ok(value.map_or("none".into(), |value| String::from_utf8_lossy(value).into_owned()))
            }
            ["number", key] => Ok(or_none(self.notes.get_array(key)?.map(i64::from_le_bytes))),
            ["put", key, value] => self.notes.put(key, value).map(|()| "ok".into()),
            ["swap", key, "none", new] => self.notes.compare_and_swap(key, None, new).map(ok_or_no),
            ["swap", key, old, new] => self.notes.compare_and_swap(key, Some(old.as_bytes()), new).map(ok_or_no),
            ["add", key, delta] => match delta.parse() {
                Ok(delta) => self.notes.add(key, delta).map(|sum| sum.to_string()),
                Err(error) => Ok(format!("{delta:?}: {error}")),
            },
            ["expire", key, "never"] => self.notes.expire(key, None).map(ok_or_no),
            ["expire", key, ms] => match ms.parse() {
                Ok(ms) => self.notes.expire(key, Some(Duration::from_millis(ms))).map(ok_or_no),
                Err(error) => Ok(format!("{ms:?}: {error}")),
            },
            ["delete", key] => self.notes.delete(key).map(ok_or_no),
            // The next command gets another instance.
            ["finish"] => {
                finish();
                Ok("ok".into())
            }
            _ => Ok("orders: get, number, put, swap, add, expire, delete, finish".into()),
        }
    }
}

fn ok_or_no(was_done: bool) -> String {
    if was_done { "ok" } else { "no" }.to_owned()
}

fn or_none(value: Option<impl Display>) -> String {
    value.map_or_else(|| "none".to_owned(), |value| value.to_string())
}

pinion_sdk::export!(Notebook);
