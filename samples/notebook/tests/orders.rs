//! Commands and their answers with the SDK's fake of a node's state. `tests/integration/functions/state.rs` checks that a node
//! answers the same.

use notebook::Notebook;
use pinion_sdk::state::{Field, StateError};
use pinion_sdk::testing::{Harness, StateField, advance_clock_ns, grant_state, message, payload, take_log};
use pinion_sdk::{Batch, Function, InitError};

fn answer(harness: &mut Harness<Notebook>, order: &str) -> String {
    let verdicts = harness.deliver(&[&message(order.as_bytes())]);
    String::from_utf8(payload(&verdicts[0].bytes).to_vec()).unwrap()
}

#[test]
fn commands_have_the_same_answers_as_on_a_node() {
    grant_state(StateField { value_bytes: 24, entries: 4, ..StateField::writable("notes") });
    let mut harness = Harness::<Notebook>::new(b"notes").unwrap();
    let mut obeyed = 0;
    for line in include_str!("orders.txt").lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match line.split_once(" => ") {
            Some((order, expected)) => assert_eq!(answer(&mut harness, order), expected, "{order}"),
            None => {
                let ms: u64 = line.strip_prefix("wait ").unwrap().parse().unwrap();
                advance_clock_ns(ms * 1_000_000);
            }
        }
        obeyed += 1;
    }
    assert!(obeyed > 40);
}

#[test]
fn a_read_only_stage_changes_nothing_and_another_instance_finds_what_was_stored() {
    grant_state(StateField::writable("notes"));
    answer(&mut Harness::new(b"notes").unwrap(), "put colour blue");
    grant_state(StateField { read_only: true, ..StateField::writable("notes") });
    let mut reader = Harness::<Notebook>::new(b"notes").unwrap();
    for order in ["put colour red", "add colour 1", "swap colour blue red", "expire colour 1", "delete colour"] {
        assert_eq!(answer(&mut reader, order), "the stage is granted this state field to read only");
    }
    assert_eq!(answer(&mut reader, "get colour"), "blue");
}

#[test]
fn a_field_that_is_full_says_so_and_one_that_evicts_forgets_the_oldest() {
    grant_state(StateField { entries: 2, ..StateField::writable("notes") });
    let mut harness = Harness::<Notebook>::new(b"notes").unwrap();
    for (order, expected) in [
        ("put a 1", "ok"),
        ("put b 2", "ok"),
        ("put c 3", "the state field has no room for another entry"),
        ("put a 4", "ok"),
    ] {
        assert_eq!(answer(&mut harness, order), expected, "{order}");
    }
    grant_state(StateField { entries: 2, evicts: true, ..StateField::writable("notes") });
    for (order, expected) in [("put c 3", "ok"), ("get a", "4"), ("get b", "none")] {
        assert_eq!(answer(&mut harness, order), expected, "{order}");
    }
}

#[test]
fn a_field_that_is_not_granted_is_named_when_the_function_is_initialised() {
    let error = Harness::<Notebook>::new(b"nots").err().unwrap().to_string();
    let expected =
        "state field \"nots\": the stage is granted no state field of this name: grant it in the chain's manifest";
    assert_eq!(error, expected);
    assert!(take_log().is_empty());
}

/// Uses its state too early, during initialisation.
struct Hasty;

impl Function for Hasty {
    fn init(_config: &[u8]) -> Result<Self, InitError> {
        let notes = Field::open("notes")?;
        assert_eq!(notes.put("key", "value"), Err(StateError::NotNow));
        assert_eq!(notes.get("key", &mut [0; 8]), Err(StateError::NotNow));
        Ok(Self)
    }

    fn handle(&mut self, _batch: Batch<'_>) {}
}

#[test]
fn nothing_is_stored_while_a_function_is_initialised() {
    grant_state(StateField::writable("notes"));
    assert!(Harness::<Hasty>::new(b"").is_ok());
    assert_eq!(Field::open("notes").unwrap().get("key", &mut [0; 8]), Ok(None));
}
