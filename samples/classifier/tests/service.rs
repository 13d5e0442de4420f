//! The function as clients of HTTP and callers of messages see it, with a model that the test replaces.

use std::cell::RefCell;
use std::fmt::Write;
use std::rc::Rc;

use classifier::ClassifierService;
use classifier::image::{CONTENT_BYTES_MAX, PIXELS_BYTES, pixels};
use classifier::verdict::LABELS;
use pinion_sdk::net::Server;
use pinion_sdk::net::testing::{Client, Network};
use pinion_sdk::testing::{FakeModel, grant_model, message, payload};
use proptest::prelude::*;

const PNG: &[u8] = include_bytes!("images/ring.png");
const JPEG: &[u8] = include_bytes!("images/checkerboard.jpg");
/// Progressive, in grey, of 320 x 240 pixels.
const LARGE: &[u8] = include_bytes!("images/triangle.jpg");

/// A function with a model that scores one class, and what the model was given.
struct Site {
    network: Network<Server<ClassifierService>>,
    seen: Rc<RefCell<Vec<Vec<u8>>>>,
}

impl Site {
    /// With a model that sees this class in every image.
    fn that_sees(class: usize) -> Self {
        let seen: Rc<RefCell<Vec<Vec<u8>>>> = Rc::default();
        let given = Rc::clone(&seen);
        grant_model(FakeModel::new("cifar", move |inputs| {
            given.borrow_mut().push(inputs[0].clone());
            let scores = (0..LABELS.len()).map(|label| if label == class { 0.91_f32 } else { 0.01 });
            Some(vec![scores.flat_map(f32::to_le_bytes).collect()])
        }));
        Self { network: Network::new(b"").unwrap(), seen }
    }

    fn connect(&mut self) -> Client {
        self.network.connect("10.0.0.1".parse().unwrap(), "10.0.0.2:80".parse().unwrap())
    }

    fn send(&mut self, client: Client, bytes: &[u8]) -> String {
        for part in bytes.chunks(16 << 10) {
            self.network.send(client, part);
            self.network.settle();
        }
        String::from_utf8(self.network.received(client)).unwrap()
    }

    /// Returns the answer to an image on a new connection.
    fn post(&mut self, image: &[u8]) -> String {
        let client = self.connect();
        self.send(client, &request(image))
    }
}

fn request(image: &[u8]) -> Vec<u8> {
    let head = format!("POST /classify HTTP/1.1\r\nHost: node\r\nContent-Length: {}\r\n\r\n", image.len());
    [head.as_bytes(), image].concat()
}

#[track_caller]
fn assert_answer(answer: &str, status: &str, body: &str) {
    assert!(answer.starts_with(&format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\n")), "{answer}");
    let given = answer.split_once("\r\n\r\n").unwrap().1;
    assert!(given.starts_with(body) && given.ends_with("}\n"), "{answer}");
    assert!(answer.contains(&format!("Content-Length: {}\r\n", given.len())), "{answer}");
}

#[test]
fn an_image_is_answered_with_its_label_and_all_scores() {
    let mut site = Site::that_sees(4);
    let mut expected = "{\"label\":\"ring\",\"scores\":{".to_owned();
    for label in LABELS {
        write!(expected, "\"{label}\":{},", if label == "ring" { "0.9100" } else { "0.0100" }).unwrap();
    }
    let expected = format!("{}}}}}\n", expected.trim_end_matches(','));
    assert_answer(&site.post(&[7; PIXELS_BYTES]), "200 OK", &expected);
    assert_eq!(*site.seen.borrow(), [[7; PIXELS_BYTES]]);
}

#[test]
fn the_model_sees_the_pixels_of_png_and_jpeg() {
    let mut site = Site::that_sees(0);
    for image in [PNG, JPEG, LARGE] {
        assert_answer(&site.post(image), "200 OK", "{\"label\":\"circle\"");
    }
    let seen = site.seen.borrow();
    assert_eq!(*seen, [PNG, JPEG, LARGE].map(|image| pixels(image).unwrap().to_vec()));
    // A grey image has as much of each colour.
    assert!(seen[2].as_chunks::<3>().0.iter().all(|[red, green, blue]| red == green && green == blue));
    assert_ne!(seen[0], seen[1]);
}

#[test]
fn several_images_are_answered_on_one_connection() {
    let mut site = Site::that_sees(9);
    let client = site.connect();
    let both = [request(PNG), request(&[1; PIXELS_BYTES])].concat();
    let answers = site.send(client, &both);
    assert_eq!(answers.matches("HTTP/1.1 200 OK\r\n").count(), 2, "{answers}");
    assert!(site.network.is_connected(client));
    assert_answer(&site.send(client, &request(JPEG)), "200 OK", "{\"label\":\"dots\"");
}

#[test]
fn an_image_may_come_in_many_parts() {
    let mut site = Site::that_sees(1);
    let client = site.connect();
    let request = request(PNG);
    let (last, rest) = request.split_last().unwrap();
    for part in rest.chunks(97) {
        assert_eq!(site.send(client, part), "");
    }
    assert_answer(&site.send(client, &[*last]), "200 OK", "{\"label\":\"square\"");
}

#[test]
fn what_is_no_image_gets_a_status_that_says_so() {
    let mut site = Site::that_sees(0);
    for (image, status, body) in [
        (
            &b"garbage"[..],
            "415 Unsupported Media Type",
            "{\"error\":\"these 7 bytes are no image: send PNG, JPEG, or 3072 bytes",
        ),
        (&[0; PIXELS_BYTES - 1], "415 Unsupported Media Type", "{\"error\":\"these 3071 bytes are no image"),
        (&PNG[..PNG.len() / 2], "422 Unprocessable Content", "{\"error\":\"the image is damaged"),
        (&PNG[..8], "422 Unprocessable Content", "{\"error\":\"the image is damaged"),
        (&JPEG[..20], "422 Unprocessable Content", "{\"error\":\"the image is damaged"),
        (b"", "400 Bad Request", "{\"error\":\"there is no content"),
    ] {
        assert_answer(&site.post(image), status, body);
    }
    assert!(site.seen.borrow().is_empty(), "no model ran");
}

/// Returns a PNG whose header claims this size, with the checksum that belongs to it.
fn png_of(width: u32, height: u32) -> Vec<u8> {
    let mut header = b"IHDR".to_vec();
    header.extend([width.to_be_bytes(), height.to_be_bytes()].as_flattened());
    header.extend([8, 2, 0, 0, 0]);
    let mut sum = u32::MAX;
    for byte in &header {
        sum ^= u32::from(*byte);
        (0..8).for_each(|_| sum = if sum & 1 == 1 { (sum >> 1) ^ 0xedb8_8320 } else { sum >> 1 });
    }
    [b"\x89PNG\r\n\x1a\n\0\0\0\r", &*header, &(!sum).to_be_bytes(), &PNG[33..]].concat()
}

#[test]
fn a_huge_image_is_refused_by_what_it_claims() {
    let mut site = Site::that_sees(0);
    let mut huge_jpeg = JPEG.to_vec();
    let frame = huge_jpeg.windows(2).position(|bytes| bytes == [0xff, 0xc0]).expect("it has a frame");
    huge_jpeg[frame + 5..frame + 9].copy_from_slice(&[0xff; 4]);
    for image in [&*png_of(513, 32), &png_of(100_000, 100_000), &png_of(32, 513), &huge_jpeg] {
        assert_answer(
            &site.post(image),
            "413 Content Too Large",
            "{\"error\":\"the image has too many pixels, or none",
        );
    }
}

#[test]
fn a_content_that_is_too_long_or_of_unknown_length_is_not_read() {
    let mut site = Site::that_sees(0);
    let head = |fields: &str| format!("POST /classify HTTP/1.1\r\nHost: node\r\n{fields}\r\n\r\n");
    let long = format!("Content-Length: {}", CONTENT_BYTES_MAX + 1);
    for (fields, status) in [
        (&*long, "413 Content Too Large"),
        ("Transfer-Encoding: chunked", "411 Length Required"),
        ("Content-Length: x", "400 Bad Request"),
    ] {
        let client = site.connect();
        let answer = site.send(client, head(fields).as_bytes());
        assert_answer(&answer, status, "{\"error\":\"");
        assert!(answer.contains("\r\nConnection: close\r\n") && site.network.is_ended(client), "{answer}");
    }
    assert!(site.post(&[0; CONTENT_BYTES_MAX]).starts_with("HTTP/1.1 415 "), "so much is read");
}

#[test]
fn other_paths_and_methods_are_refused() {
    let mut site = Site::that_sees(0);
    for (line, status, field) in [
        ("GET /classify", "405 Method Not Allowed", "\r\nAllow: POST\r\n"),
        ("POST /", "404 Not Found", ""),
        ("GET /", "404 Not Found", ""),
        ("GET /classify?x", "405 Method Not Allowed", "\r\nAllow: POST\r\n"),
        ("DELETE /classify", "405 Method Not Allowed", "\r\nAllow: POST\r\n"),
        ("BREW /classify", "501 Not Implemented", ""),
    ] {
        let client = site.connect();
        let answer = site.send(client, format!("{line} HTTP/1.1\r\nHost: node\r\n\r\n").as_bytes());
        assert_answer(&answer, status, "{\"error\":\"");
        assert!(answer.contains(field), "{answer}");
    }
}

#[test]
fn a_client_that_does_not_complete_its_request_is_disconnected() {
    let mut site = Site::that_sees(0);
    let client = site.connect();
    assert_eq!(site.send(client, &request(PNG)[..100]), "");
    site.network.let_pass_ns(9_000_000_000);
    assert!(site.network.is_connected(client));
    site.network.let_pass_ns(2_000_000_000);
    assert!(site.network.is_ended(client));
}

#[test]
fn a_stage_that_is_not_granted_the_model_is_refused_and_a_run_that_fails_is_an_error_of_the_server() {
    let refusal = Network::<Server<ClassifierService>>::new(b"model = \"none\"").err().unwrap().to_string();
    assert!(refusal.starts_with("model \"none\": the stage is granted no model of this name"), "{refusal}");
    let mut site = Site::that_sees(0);
    grant_model(FakeModel::new("cifar", |_| None));
    assert_answer(&site.post(PNG), "500 Internal Server Error", "{\"error\":\"the run failed\"}");
}

#[test]
fn a_message_with_an_image_is_answered_likewise() {
    let mut site = Site::that_sees(8);
    let frames = [message(JPEG), message(b"garbage"), message(b"")];
    let verdicts = site.network.harness.deliver(&frames.each_ref().map(|frame| &frame[..]));
    let answers: Vec<&str> = verdicts.iter().map(|verdict| str::from_utf8(payload(&verdict.bytes)).unwrap()).collect();
    assert!(answers[0].starts_with("{\"label\":\"checkerboard\","), "{answers:?}");
    assert!(answers[1].starts_with("{\"error\":\"these 7 bytes are no image"), "{answers:?}");
    assert!(answers[2].starts_with("{\"error\":\"there is no content"), "{answers:?}");
}

#[test]
fn a_configuration_that_is_not_known_is_refused() {
    let refusal = Network::<Server<ClassifierService>>::new(b"modle = \"x\"").err().unwrap().to_string();
    assert!(refusal.contains("modle"), "{refusal}");
}

proptest! {
    #[test]
    fn no_bytes_make_the_decoders_panic(
        which in 0..3_usize,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        len in any::<prop::sample::Index>(),
    ) {
        let mut image = [PNG, JPEG, LARGE][which].to_vec();
        for (at, byte) in damage {
            let at = at.index(image.len());
            image[at] = byte;
        }
        let _ = pixels(&image);
        let _ = pixels(&image[..len.index(image.len())]);
    }
}
