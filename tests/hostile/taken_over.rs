//! Private keys, session tickets and what clients send, before a function that is in an attacker's hands.
//!
//! ```text
//!   mallory   chain "puppet"  keys site (P-256), rsa     clients 0 and 1, an instance each
//!             chain "other"   key spare (Ed25519)        no client
//!   demo      chain "victim"  keys vault (P-384), site   client 2; `site` is the same key as mallory's
//! ```

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use pinion_tests::machine::process::output;
use pinion_tests::network::bed::{Bed, Device, NODE, TENANT};
use pinion_tests::product::build::{hostile, workspace};
use pinion_tests::product::manifest::Manifest;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

use crate::neighbours::GREEDY;
use crate::puppets::{Call, Puppet, Secrets};

/// UDP ports of the puppets of both tenants.
const PORT: u16 = 7_001;
const VICTIMS_PORT: u16 = 7_002;
/// What only one of them has, in its configuration and in what its client sends: no two have eight bytes in common.
const OWN_CONFIG: &str = "5d2f81c6-bb17-40e9";
const VICTIMS_CONFIG: &str = "93be07a4-1c58-4d02";
const OWN_TRAFFIC: &[u8] = b"e81f6b2c-90d3-4a7e";
const OTHER_CLIENTS_TRAFFIC: &[u8] = b"40c7ab95-3e61-4f8d";
const VICTIMS_TRAFFIC: &[u8] = b"1b9d52f0-c784-46ea";

/// Schemes of the keys of mallory's puppet (RFC 8446, section 4.2.3), and of its numbers of them.
const ECDSA: u32 = 0x0403;
const RSA_PSS: u32 = 0x0804;
const RSA_PKCS1: u32 = 0x0401;
const SITE: u32 = 0;
const RSA: u32 = 1;
/// Errors of the ABI, as calls return them.
const NO_KEY: i32 = -10;
const REFUSED: i32 = -11;

/// The node, its tenants and all their puppets.
struct Scene {
    bed: Bed,
    puppet: Puppet,
    of_other_client: Puppet,
    victim: Puppet,
}

fn pem(name: &str) -> PathBuf {
    workspace().join("control/keys/tests/data").join(name).with_extension("pem")
}

fn manifest(tenant: &str, keys: &[(&str, &str)], chain: &str, config: &str, port: u16) -> Manifest {
    let manifest = Manifest::of(tenant).module("puppet", &hostile("puppet"));
    let key = |manifest: Manifest, (name, file): &(&str, &str)| {
        manifest.with(format_args!("[key.{name}]\nfile = {:?}\n", pem(file)))
    };
    let names: Vec<&str> = keys.iter().map(|(name, _)| *name).collect();
    keys.iter().fold(manifest, key).with(format_args!(
        "[[chain]]\nname = \"{chain}\"\nstage = [{{ module = \"puppet\", keys = {names:?}, config = \"{config}\" }}]\n\
         memory_limit_kib = 16384\n\
         [[rule]]\nname = \"{chain}\"\npolicy = \"per-client\"\nchain = \"{chain}\"\n\
         match = {{ destination = \"{NODE}\", protocol = \"udp\", destination_ports = {port} }}\n"
    ))
}

impl Scene {
    #[track_caller]
    fn new() -> Self {
        let bed = Bed::new(Device::Tap);
        let own = manifest(GREEDY, &[("site", "p256"), ("rsa", "rsa2048")], "puppet", OWN_CONFIG, PORT);
        let own = own.with(format_args!(
            "[key.spare]\nfile = {:?}\n[[chain]]\nname = \"other\"\ncache_min = 1\n\
             stage = [{{ module = \"puppet\", keys = [\"spare\"] }}]\n",
            pem("ed25519")
        ));
        bed.node.apply(own.text());
        let theirs = [("vault", "p384"), ("site", "p256")];
        bed.node.apply(manifest(TENANT, &theirs, "victim", VICTIMS_CONFIG, VICTIMS_PORT).text());
        let puppet = Puppet::new(&bed.clients[0], PORT);
        let of_other_client = Puppet::new(&bed.clients[1], PORT);
        let victim = Puppet::new(&bed.clients[2], VICTIMS_PORT);
        Self { bed, puppet, of_other_client, victim }
    }

    /// Lets all puppets do what is theirs to do: keys are used, tickets made, and bytes sent.
    #[track_caller]
    fn be_busy(&mut self) {
        for (puppet, traffic) in [
            (&mut self.puppet, OWN_TRAFFIC),
            (&mut self.of_other_client, OTHER_CLIENTS_TRAFFIC),
            (&mut self.victim, VICTIMS_TRAFFIC),
        ] {
            puppet.write(9, traffic);
            let ticket = puppet.seal(0, traffic);
            assert_eq!(puppet.unseal(0, &ticket).as_deref(), Ok(traffic));
        }
        assert!(self.puppet.sign(SITE, ECDSA, &tls13(32)) > 0 && self.puppet.sign(RSA, RSA_PSS, &tls13(32)) > 0);
        assert!(self.victim.sign(0, 0x0503, &tls13(48)) > 0, "the other tenant's key signs for it");
    }
}

/// What a server signs in TLS 1.3 (RFC 8446, section 4.4.3), with a hash of so many bytes.
fn tls13(hash_bytes: usize) -> Vec<u8> {
    [&[b' '; 64][..], b"TLS 1.3, server CertificateVerify\0", &vec![0xab; hash_bytes]].concat()
}

/// What a server signs in TLS 1.2 (RFC 8422, section 5.4), of this type of curve.
fn tls12(kind: u8, group: u16, point: &[u8]) -> Vec<u8> {
    let [high, low] = group.to_be_bytes();
    [&[0x5a; 64][..], &[kind, high, low, point.len() as u8], point].concat()
}

/// The public key of a key in PEM over a curve of the NIST, uncompressed: a point of so many bytes.
fn point(file: &str, bytes: usize) -> Vec<u8> {
    let said = output(Command::new("openssl").args(["pkey", "-pubout", "-outform", "DER", "-in"]).arg(pem(file)));
    said.stdout[said.stdout.len() - bytes..].to_vec()
}

/// Returns whether some 32 bytes in a row open a ticket as the node seals them: they are its key.
fn holds_key_of(dump: &[u8], ticket: &[u8]) -> bool {
    let (head, sealed) = ticket.split_at(16);
    let (name, number) = head.split_at(8);
    let mut nonce = [0; 12];
    nonce[..8].copy_from_slice(number);
    dump.windows(32).any(|key| {
        let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key).expect("a key of AES-256 has 32 bytes"));
        let nonce = Nonce::assume_unique_for_key(nonce);
        key.open_in_place(nonce, Aad::from(name), &mut sealed.to_vec()).is_ok()
    })
}

/// Seals a ticket as the node does, with this key.
fn sealed_with(key: &[u8; 32], content: &[u8]) -> Vec<u8> {
    let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key).expect("a key of AES-256 has 32 bytes"));
    let mut sealed = content.to_vec();
    let nonce = Nonce::assume_unique_for_key([0; 12]);
    key.seal_in_place_append_tag(nonce, Aad::from([7_u8; 8]), &mut sealed).expect("so few bytes can be sealed");
    [&[7_u8; 8][..], &[0; 8], &sealed].concat()
}

/// Adds a private key in all forms in which it is written.
fn add_key(secrets: &mut Secrets, file: &str) {
    let text = fs::read_to_string(pem(file)).expect("the key is there");
    let lines = text.lines().filter(|line| !line.starts_with("-----"));
    lines.for_each(|line| secrets.add(&format!("{file} in PEM"), line.as_bytes()));
    let der = output(Command::new("openssl").args(["pkey", "-outform", "DER", "-in"]).arg(pem(file))).stdout;
    secrets.add(&format!("{file} in DER"), &der);
    // As a number, its bytes may also be in the other order.
    let reversed: Vec<u8> = der.into_iter().rev().collect();
    secrets.add(&format!("{file}, backwards"), &reversed);
}

#[test]
fn a_function_that_was_taken_over_finds_no_key_and_nothing_of_others_in_its_memory_or_in_answers() {
    let mut scene = Scene::new();
    scene.be_busy();
    let mut secrets = Secrets::default();
    ["p256", "rsa2048", "ed25519", "p384"].into_iter().for_each(|file| add_key(&mut secrets, file));
    let secret = fs::read(scene.bed.node.path("state/keys.secret")).expect("the node has made a secret");
    secrets.add("the node's secret", &secret);
    secrets.add("another client's traffic", OTHER_CLIENTS_TRAFFIC);
    secrets.add("another tenant's traffic", VICTIMS_TRAFFIC);
    secrets.add("another tenant's configuration", VICTIMS_CONFIG.as_bytes());
    // All calls that return bytes.
    let puppet = &mut scene.puppet;
    let place = puppet.place(20);
    puppet.call(Call::Config, &[place, 4_096]);
    puppet.call(Call::Random, &[place + 4_096, 256]);
    for call in [Call::EnvironSizesGet, Call::EnvironGet, Call::ArgsSizesGet, Call::ArgsGet, Call::FdPrestatGet] {
        puppet.call(call, &[place + 8_192, place + 8_200]);
    }
    puppet.call(Call::FdRead, &[0, place, 8, place + 16_384]);
    for key in 0..16 {
        puppet.call(Call::TicketOpen, &[key, 0, 4_128, place + 16_384, 4_096]);
    }
    puppet.call(Call::NnLoad, &[0, 1, 0, 0, place]);
    puppet.call(Call::NnLoadByName, &[0, 5, place]);
    puppet.call(Call::NnInitExecutionContext, &[0, place]);
    puppet.call(Call::NnSetInput, &[0, 0, place]);
    puppet.call(Call::NnCompute, &[0]);
    puppet.call(Call::NnGetOutput, &[0, 0, place, 65_536, place]);
    let ticket = puppet.seal(SITE, b"a session");
    let theirs = scene.victim.seal(0, b"a session");
    let own_key: [u8; 32] = std::array::from_fn(|at| at as u8 ^ 0xc3);
    scene.puppet.write(30, &own_key);
    let dump = scene.puppet.dump();
    assert!(dump.len() > 1 << 20, "{} bytes", dump.len());
    assert_eq!(secrets.found_in(&dump), [""; 0]);
    assert!(!holds_key_of(&dump, &ticket) && !holds_key_of(&dump, &theirs), "the node's keys of tickets");
    // What is there is found.
    let mut there = Secrets::default();
    there.add("its own traffic", OWN_TRAFFIC);
    there.add("its own configuration", OWN_CONFIG.as_bytes());
    assert_eq!(there.found_in(&dump), ["its own traffic", "its own configuration"]);
    assert!(holds_key_of(&dump, &sealed_with(&own_key, b"a session")), "a key that is there opens its ticket");
}

#[test]
fn a_function_that_was_taken_over_gets_signatures_over_what_servers_sign_and_nothing_else() {
    let mut scene = Scene::new();
    let puppet = &mut scene.puppet;
    let (on_p256, on_p384) = (point("p256", 65), point("p384", 97));
    let good = [tls13(32), tls13(48), tls12(3, 29, &[9; 32]), tls12(3, 23, &on_p256), tls12(3, 24, &on_p384)];
    for message in &good {
        for (key, scheme) in [(SITE, ECDSA), (RSA, RSA_PSS)] {
            assert!(puppet.sign(key, scheme, message) > 0, "{key}: {}", message.escape_ascii());
        }
    }
    let text = |text: &[u8]| text.to_vec();
    let other_context = |context: &[u8]| [&[b' '; 64][..], context, &[0], &[0xab; 32]].concat();
    let with_byte = |point: &[u8], at: usize, byte: u8| {
        let mut point = point.to_vec();
        point[at] ^= byte;
        point
    };
    let bad = [
        // Digests, and what is none.
        Vec::new(),
        vec![0xab; 20],
        vec![0xab; 32],
        vec![0xab; 48],
        vec![0xab; 64],
        // Of TLS 1.3, but of clients, of other contexts, of other hashes.
        other_context(b"TLS 1.3, client CertificateVerify"),
        other_context(b"TLS 1.3, server delegated credentials"),
        other_context(b"TLS 1.3, Server CertificateVerify"),
        other_context(b"HTTP Exchange 1"),
        tls13(20),
        tls13(64),
        tls13(32)[1..].to_vec(),
        // Of TLS 1.2, with bad curves and points. The last but one is a byte short, and the last one not on its curve.
        tls12(1, 23, &on_p256),
        tls12(3, 25, &[&[4][..], &[9; 132]].concat()),
        tls12(3, 30, &[9; 56]),
        tls12(3, 0x0100, &[9; 255]),
        tls12(3, 29, &[9; 33]),
        tls12(3, 23, &on_p384),
        tls12(3, 23, &with_byte(&on_p256[..33], 0, 4 ^ 2)),
        tls12(3, 23, &with_byte(&on_p256, 0, 4 ^ 6)),
        tls12(3, 23, &[]),
        tls12(3, 23, &on_p256)[..132].to_vec(),
        tls12(3, 23, &with_byte(&on_p256, 64, 1)),
        tls12(3, 24, &with_byte(&on_p384, 96, 1)),
        // What other protocols sign: certificates (RFC 5280), requests for them, SSH (RFC 4252), tokens (RFC 7515), TLS 1.2's CertificateVerify.
        [&[0x30, 0x82, 0x01, 0x0a, 0xa0, 0x03, 0x02, 0x01, 0x02, 0x02, 0x01, 0x01][..], &[0x5a; 260]].concat(),
        [&[0x30, 0x81, 0x9f, 0x02, 0x01, 0x00][..], &[0x5a; 156]].concat(),
        [&[0, 0, 0, 32][..], &[0xab; 32], b"\x32\0\0\0\x04root\0\0\0\x0essh-connection\0\0\0\x09publickey"].concat(),
        text(b"eyJhbGciOiJFUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJyb290IiwiYWRtaW4iOnRydWV9"),
        [&[1, 0, 0, 60, 3, 3][..], &[0x5a; 58]].concat(),
    ];
    for message in &bad {
        for (key, scheme) in [(SITE, ECDSA), (RSA, RSA_PSS), (RSA, RSA_PKCS1)] {
            let returned = puppet.sign(key, scheme, message);
            assert_eq!(returned, REFUSED, "{key}, {scheme:#x}: {}", message.escape_ascii());
        }
    }
    let to = puppet.place(1);
    for len in [166, 512, 65_536, 1 << 20, u32::MAX] {
        assert_eq!(puppet.call(Call::KeySign, &[SITE, ECDSA, 0, len, to, 512]), REFUSED, "{len} bytes");
    }
    // Good messages by schemes of others, of no TLS, or that are for certificates only.
    for scheme in [0, 0x0201, 0x0203, 0x0401, 0x0503, 0x0603, 0x0804, 0x0807, 0x0809, 0xffff, 0x1_0403, u32::MAX] {
        assert_eq!(puppet.sign(SITE, scheme, &tls13(32)), REFUSED, "{scheme:#x}");
    }
    assert_eq!(puppet.sign(RSA, RSA_PKCS1, &tls13(32)), REFUSED, "PKCS #1 v1.5 in TLS 1.3");
}

#[test]
fn a_function_that_was_taken_over_uses_no_key_that_its_stage_was_not_granted() {
    let mut scene = Scene::new();
    scene.be_busy();
    let puppet = &mut scene.puppet;
    assert_eq!([puppet.open(b"site"), puppet.open(b"rsa")], [0, 1]);
    let names: [&[u8]; 16] = [
        b"vault",
        b"spare",
        b"demo/vault",
        b"demo/site",
        b"default/site",
        b"../demo/vault",
        b"mallory/spare",
        b"key.spare",
        b"SITE",
        b"site\0",
        b"sit",
        b" site",
        b"",
        b"*",
        b"%s%n",
        &[b'a'; 64],
    ];
    for name in names {
        assert_eq!(puppet.open(name), NO_KEY, "{}", name.escape_ascii());
    }
    let tickets = [scene.victim.seal(0, b"of the vault"), scene.victim.seal(1, b"of the other site")];
    let (to, content) = (puppet.place(1), puppet.write(9, &tls13(32)));
    let near = 2..300_u32;
    let far = (0..32).flat_map(|bit| [1_u32 << bit, (1_u32 << bit).wrapping_neg()]).filter(|number| *number > 1);
    for number in near.chain(far) {
        for scheme in [ECDSA, 0x0503, RSA_PSS, 0x0807] {
            let arguments = [number, scheme, content, 130, to, 512];
            assert!(puppet.call(Call::KeySign, &arguments) < 0, "{number} signs by {scheme:#x}");
        }
        assert_eq!(puppet.call(Call::TicketSeal, &[number, content, 16, to, 512]), NO_KEY, "{number} seals");
        assert_eq!(puppet.unseal(number, &tickets[0]), Err(NO_KEY), "{number} opens");
    }
}

#[test]
fn a_function_that_was_taken_over_opens_no_ticket_that_was_made_up_changed_or_sealed_for_others() {
    const CONTENT: &[u8] = b"the secrets of a session";
    let mut scene = Scene::new();
    let Scene { puppet, of_other_client, victim, .. } = &mut scene;
    let ticket = puppet.seal(SITE, CONTENT);
    assert_eq!(puppet.unseal(SITE, &ticket).as_deref(), Ok(CONTENT));
    assert_eq!(of_other_client.unseal(SITE, &ticket).as_deref(), Ok(CONTENT), "instances share them");
    assert_eq!(puppet.unseal(RSA, &ticket), Err(REFUSED), "with another key of the stage");
    // The second key is the same one as `site`, of another tenant.
    for number in [0, 1] {
        let theirs = victim.seal(number, CONTENT);
        for key in [SITE, RSA] {
            assert_eq!(puppet.unseal(key, &theirs), Err(REFUSED), "of the other tenant's key {number} with {key}");
        }
        assert_eq!(victim.unseal(number, &ticket), Err(REFUSED));
    }
    for len in 0..ticket.len() {
        assert_eq!(puppet.unseal(SITE, &ticket[..len]), Err(REFUSED), "{len} bytes of it");
    }
    for bit in 0..ticket.len() * 8 {
        let mut changed = ticket.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(puppet.unseal(SITE, &changed), Err(REFUSED), "without bit {bit}");
    }
    let other = puppet.seal(SITE, CONTENT);
    assert_ne!(ticket, other);
    let made_up = [
        vec![0; 32],
        vec![0xff; 4_128],
        [&ticket[..16], &other[16..]].concat(),
        [&ticket[..], &[0]].concat(),
        [&ticket[..], &other].concat(),
        sealed_with(&[0; 32], CONTENT),
        [&ticket[..8], &sealed_with(&[0; 32], CONTENT)[8..]].concat(),
    ];
    for forged in &made_up {
        assert_eq!(puppet.unseal(SITE, forged), Err(REFUSED), "{}", forged.escape_ascii());
    }
    // Nothing of a refused one was written.
    let to = puppet.place(3);
    let before = puppet.write(3, &[0xee; 64]);
    assert_eq!(before, to);
    let mut changed = ticket;
    *changed.last_mut().expect("it has a tag") ^= 1;
    assert_eq!(puppet.unseal(SITE, &changed), Err(REFUSED));
    assert_eq!(puppet.read(to..to + 64), [0xee; 64]);
}
