//! Private keys, as functions see them in native tests.

use pinion_sdk::keys::{Key, SignError, TICKET_BYTES_MAX, TICKET_LIFETIME_S};
use pinion_sdk::testing::{FakeKey, Harness, advance_clock_ns, grant_key};
use pinion_sdk::{InitError, Packet, PacketFunction};

const SECOND_NS: u64 = 1_000_000_000;

fn granted(name: &str) -> Key {
    grant_key(FakeKey::new(name, |scheme, message| Some([&scheme.to_be_bytes(), message].concat())));
    Key::open(name).expect("it was granted")
}

#[test]
fn a_key_is_opened_by_the_name_of_its_grant_and_others_are_named() {
    let [site, other] = ["site", "other"].map(granted);
    assert_eq!(site.sign(0x0807, b"message").as_deref(), Ok(&b"\x08\x07message"[..]));
    assert_ne!(site.seal_ticket(b"a session"), other.seal_ticket(b"a session"));
    for name in ["sit", "site2", "", &"n".repeat(65)] {
        let refused = Key::open(name).expect_err("it was not granted").to_string();
        assert!(refused.contains(&format!("{name:?}")), "{refused}");
    }
}

#[test]
fn what_a_key_refuses_to_sign_is_refused() {
    grant_key(FakeKey::new("site", |_, _| None));
    assert_eq!(Key::open("site").unwrap().sign(0x0807, b"message"), Err(SignError::Refused));
    assert_eq!(granted("other").sign(0x0807, &[0; 257]), Err(SignError::Refused), "no handshake is so long");
}

#[test]
fn tickets_are_opened_by_their_own_key_for_their_lifetime_and_if_nothing_was_changed() {
    let [site, other] = ["site", "other"].map(granted);
    let ticket = site.seal_ticket(b"a session").unwrap();
    assert_eq!(other.open_ticket(&ticket), None);
    for at in 0..ticket.len() {
        let mut changed = ticket.clone();
        changed[at] ^= 1;
        assert_eq!(site.open_ticket(&changed), None, "byte {at}");
        assert_eq!(site.open_ticket(&ticket[..at]), None, "{at} bytes");
    }
    advance_clock_ns(u64::from(TICKET_LIFETIME_S) * SECOND_NS);
    assert_eq!(site.open_ticket(&ticket).as_deref(), Some(&b"a session"[..]));
    advance_clock_ns(u64::from(TICKET_LIFETIME_S) * SECOND_NS);
    assert_eq!(site.open_ticket(&ticket), None, "twice its lifetime");
    assert_eq!(site.seal_ticket(&[0; TICKET_BYTES_MAX + 1]), Err(SignError::TooLong));
}

struct Eager;

impl PacketFunction for Eager {
    fn init(_config: &[u8]) -> Result<Self, InitError> {
        let key = Key::open("site")?;
        assert_eq!(key.sign(0x0807, b"message"), Err(SignError::NotNow));
        assert_eq!(key.seal_ticket(b"a session"), Err(SignError::NotNow));
        Ok(Self)
    }

    fn handle(&mut self, _packet: Packet<'_>) {}
}

#[test]
fn a_key_is_opened_but_not_used_while_a_function_is_initialised() {
    assert!(Harness::<Eager>::new(b"").is_err());
    granted("site");
    assert!(Harness::<Eager>::new(b"").is_ok());
}
