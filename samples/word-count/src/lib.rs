//! Answers each message with the number of its payload's lines, words and bytes, as `wc` does: a function that is
//! called by name.
//!
//! ```text
//!   $ echo "to be or not to be" | pinion invoke word-count
//!   1 6 19
//! ```

#![forbid(unsafe_code)]

use pinion_sdk::{Batch, Function, InitError, Message};

/// The function. It has no state.
#[derive(Debug)]
pub struct WordCount;

impl Function for WordCount {
    fn init(config: &[u8]) -> Result<Self, InitError> {
        if !config.is_empty() {
            return Err(InitError::new(format!(
                "word-count has no configuration, but was given {} bytes",
                config.len()
            )));
        }
        Ok(Self)
    }

    fn handle(&mut self, batch: Batch<'_>) {
        // Frames that are not messages are dropped.
        for message in batch.filter_map(|packet| Message::of(packet).ok()) {
            let answer = count(message.payload());
            // Three numbers and two spaces always fit into a message.
            let _ = message.answer(answer.as_bytes());
        }
    }
}

fn count(text: &[u8]) -> String {
    let lines = text.iter().filter(|byte| **byte == b'\n').count();
    let words = text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).count();
    format!("{lines} {words} {}\n", text.len())
}

pinion_sdk::export!(WordCount);

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_sdk::testing::{Harness, Outcome, message, payload};

    #[test]
    fn a_message_is_answered_with_its_lines_words_and_bytes() {
        let mut harness = Harness::<WordCount>::new(b"").unwrap();
        let texts = [&b"to be or\nnot  to be\n"[..], b"", b" \t\n", b"word"];
        let frames = texts.map(message);
        let verdicts = harness.deliver(&frames.each_ref().map(|frame| &frame[..]));
        let answers: Vec<_> = verdicts.iter().map(|verdict| payload(&verdict.bytes)).collect();
        assert_eq!(answers, [&b"2 6 20\n"[..], b"0 0 0\n", b"1 0 3\n", b"0 1 4\n"]);
        assert!(verdicts.iter().all(|verdict| verdict.outcome == Outcome::Replied));
    }

    #[test]
    fn what_is_no_message_is_dropped() {
        let mut harness = Harness::<WordCount>::new(b"").unwrap();
        let mut of_version_9 = message(b"text");
        of_version_9[14] = 9;
        let verdicts = harness.deliver(&[&[0; 60], &message(b"")[..31], &of_version_9]);
        assert!(verdicts.iter().all(|verdict| verdict.outcome == Outcome::Dropped));
    }
}
