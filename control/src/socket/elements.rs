//! Counts the elements of a message from its encoded bytes, as they arrive.
//!
//! An element of two bytes may take some hundred in memory once it is decoded. So elements are counted, and their memory
//! is charged to the caller, before anything is decoded.

use tonic::Status;

use crate::access::{Field, Row, Shape};

/// The most elements of repeated fields in one message, at all depths together.
const ELEMENTS_MAX: u64 = 1 << 18;
/// A list has up to twice the memory of its elements, as it grows by doubling.
const GROWTH: u64 = 2;
/// The longest varint: 64 bits, 7 in a byte.
const VARINT_BYTES_MAX: u32 = 10;

/// Follows one message. Takes a few bytes for each level of nesting.
pub(super) struct Elements {
    row: &'static Row,
    /// The messages that the next byte is in, outermost first. A message without a shape is not followed.
    open: Vec<Open>,
    next: Next,
    count: u64,
    decoded_bytes: u64,
}

struct Open {
    shape: &'static Shape,
    left_bytes: u64,
}

/// What the next byte belongs to.
enum Next {
    Tag(Varint),
    Number(Varint),
    Length {
        length: Varint,
        field: Option<&'static Field>,
    },
    /// Text, bytes, or a number of fixed size, of which so much is left.
    Skipped {
        left_bytes: u64,
    },
}

#[derive(Clone, Copy, Default)]
struct Varint {
    value: u64,
    len: u32,
}

impl Varint {
    /// Adds a byte, and returns the number if it was the last one.
    fn push(&mut self, byte: u8, broken: impl Fn() -> Status) -> Result<Option<u64>, Status> {
        if self.len == VARINT_BYTES_MAX {
            return Err(broken());
        }
        self.value |= u64::from(byte & 0x7f) << (7 * self.len);
        self.len += 1;
        Ok((byte & 0x80 == 0).then_some(self.value))
    }
}

impl Elements {
    /// Begins a message of this length.
    pub(super) fn new(row: &'static Row, left_bytes: u64) -> Self {
        let open = row.shape.map(|shape| Open { shape, left_bytes }).into_iter().collect();
        Self { row, open, next: Next::Tag(Varint::default()), count: 0, decoded_bytes: 0 }
    }

    /// Returns the memory that the elements so far take beside their encoded bytes.
    pub(super) fn decoded_bytes(&self) -> u64 {
        self.decoded_bytes
    }

    /// Follows the message's next bytes. Refuses too many elements, and what no decoder takes.
    pub(super) fn read(&mut self, mut data: &[u8]) -> Result<(), Status> {
        if self.row.shape.is_none() {
            return Ok(());
        }
        loop {
            if let Next::Skipped { left_bytes } = &mut self.next {
                let some = (*left_bytes).min(data.len() as u64);
                (*left_bytes, data) = (*left_bytes - some, &data[some as usize..]);
                if *left_bytes > 0 {
                    return Ok(());
                }
                self.next = Next::Tag(Varint::default());
            }
            if matches!(self.next, Next::Tag(Varint { len: 0, .. })) {
                while self.open.last().is_some_and(|open| open.left_bytes == 0) {
                    self.open.pop();
                }
            }
            let Some((byte, rest)) = data.split_first() else { return Ok(()) };
            data = rest;
            self.take(1)?;
            self.read_byte(*byte)?;
        }
    }

    fn read_byte(&mut self, byte: u8) -> Result<(), Status> {
        let row = self.row;
        let broken = || broken(row);
        match &mut self.next {
            Next::Tag(tag) => {
                let Some(tag) = tag.push(byte, broken)? else { return Ok(()) };
                self.next = match tag & 7 {
                    0 => Next::Number(Varint::default()),
                    1 => self.skip(8)?,
                    2 => {
                        let field = self.open.last().and_then(|open| open.shape.field(tag >> 3));
                        Next::Length { length: Varint::default(), field }
                    }
                    5 => self.skip(4)?,
                    _ => return Err(broken()),
                };
            }
            Next::Number(number) => {
                if number.push(byte, broken)?.is_some() {
                    self.next = Next::Tag(Varint::default());
                }
            }
            Next::Length { length, field } => {
                let field = *field;
                let Some(left_bytes) = length.push(byte, broken)? else { return Ok(()) };
                if let Some(field) = field {
                    self.count(field)?;
                }
                self.next = self.skip(left_bytes)?;
                if let Some(shape) = field.and_then(|field| field.message) {
                    self.open.push(Open { shape, left_bytes });
                    self.next = Next::Tag(Varint::default());
                }
            }
            Next::Skipped { .. } => {}
        }
        Ok(())
    }

    /// Takes bytes from the innermost message, which must have as many.
    fn take(&mut self, bytes: u64) -> Result<(), Status> {
        let open = self.open.last_mut().ok_or_else(|| broken(self.row))?;
        open.left_bytes = open.left_bytes.checked_sub(bytes).ok_or_else(|| broken(self.row))?;
        Ok(())
    }

    fn skip(&mut self, left_bytes: u64) -> Result<Next, Status> {
        self.take(left_bytes)?;
        Ok(Next::Skipped { left_bytes })
    }

    fn count(&mut self, field: &Field) -> Result<(), Status> {
        if !field.is_list {
            return Ok(());
        }
        self.count += 1;
        self.decoded_bytes += GROWTH * field.element_bytes;
        if self.count <= ELEMENTS_MAX {
            return Ok(());
        }
        Err(Status::resource_exhausted(format!(
            "{} takes at most {ELEMENTS_MAX} elements in a message, of all lists together, and this one has more: send less at once",
            self.row.method()
        )))
    }
}

fn broken(row: &Row) -> Status {
    Status::invalid_argument(format!(
        "this message is not one of {}: its fields are not encoded correctly",
        row.method()
    ))
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use crate::proto;

    const APPLY: &str = "/pinion.v1.Control/Apply";

    /// Reads a message in parts of this size.
    fn read(message: &[u8], part_bytes: usize) -> Result<Elements, Status> {
        let mut elements = Elements::new(Row::of(APPLY).unwrap(), message.len() as u64);
        message.chunks(part_bytes).try_for_each(|part| elements.read(part))?;
        Ok(elements)
    }

    fn change() -> proto::ApplyRequest {
        let output = |target| proto::Output { target: Some(target) };
        let stage = proto::Stage {
            // It would be many empty modules if it were a message.
            config: [0x0a, 0].repeat(500),
            outputs: vec![
                output(proto::output::Target::Stage(300)),
                output(proto::output::Target::Egress(proto::output::Egress {})),
            ],
            files: Some(proto::Files { digest: "sha256:".into(), size_bytes: 1 << 40 }),
            state: vec![proto::StateGrant::default()],
            keys: vec!["site".into()],
            models: vec!["cifar".into()],
            ..Default::default()
        };
        let branch = Some(proto::Branch { cases: vec![proto::BranchCase::default(); 4], default: None });
        let from = vec!["lan".into(), "wan".into()];
        let reverse = Some(proto::Reverse { from, egress: "lan".into(), entry: branch.clone() });
        let chain = proto::Chain { stages: vec![stage; 3], reverse, entry: branch, ..Default::default() };
        let rule = proto::Rule { r#match: Some(proto::Match::default()), ..Default::default() };
        proto::ApplyRequest {
            modules: vec![proto::Module::default(); 5],
            chains: vec![chain; 2],
            rules: vec![rule],
            keys: vec![proto::Key::default(); 2],
            models: vec![proto::Model::default(); 2],
            tenants: vec![],
            deletes: vec![proto::ObjectRef::default(); 3],
            expected_revision: Some(1),
            dry_run: true,
            label: Some("web".into()),
            take_over: true,
            prune_tenants: vec!["demo".into()],
        }
    }

    #[test]
    fn elements_of_all_depths_are_counted_however_the_bytes_are_divided() {
        let message = change().encode_to_vec();
        // Two chains have three stages, each with two outputs, a grant, a key and a model, two ports, and two branches of four
        // matches.
        let expected = 5 + 2 + 2 + 1 + 3 + 1 + 2 * (1 + 3 * (1 + 2 + 1 + 2) + 2 + 2 * 4);
        for part_bytes in [1, 2, 3, 7, message.len()] {
            let elements = read(&message, part_bytes).unwrap();
            assert_eq!(elements.count, expected, "in parts of {part_bytes} bytes");
            assert!(elements.open.is_empty() && elements.decoded_bytes > 10 * 100);
        }
    }

    #[test]
    fn a_message_of_many_empty_elements_is_refused_before_it_is_decoded() {
        let max = ELEMENTS_MAX as usize;
        let elements = read(&[0x0a, 0].repeat(max), 1 << 14).unwrap();
        assert_eq!(elements.decoded_bytes, ELEMENTS_MAX * 2 * size_of::<proto::Module>() as u64);
        let stages = [0x1a, 0].repeat(max);
        let mut chain = vec![0x12];
        prost::encoding::encode_varint(stages.len() as u64, &mut chain);
        for message in [[0x0a, 0].repeat(max + 1), [&chain[..], &stages].concat()] {
            let refused = read(&message, 1 << 14).err().unwrap();
            assert!(refused.message().contains("Apply takes at most 262144 elements"), "{refused}");
        }
    }

    #[test]
    fn what_cannot_be_decoded_is_refused_or_left_to_the_decoder_and_never_panics() {
        let message = change().encode_to_vec();
        for at in 0..message.len() {
            for byte in [0, 3, 0x7f, 0xff] {
                let mut broken = message.clone();
                broken[at] = byte;
                if read(&broken, 5).is_err() {
                    assert!(proto::ApplyRequest::decode(&broken[..]).is_err(), "byte {at} is {byte}");
                }
            }
        }
        for broken in [&[0x0a, 2, 0][..], &[0x0b], &[0x08; 1][..], &[0xff; 11]] {
            let whole =
                read(broken, 1).map(|elements| elements.open.is_empty() && matches!(elements.next, Next::Tag(_)));
            assert!(!whole.unwrap_or(false) && proto::ApplyRequest::decode(broken).is_err(), "{broken:?}");
        }
    }
}
