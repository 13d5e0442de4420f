//! Reads images: PNG, JPEG, or pixels as they are. Sizes are checked before anything is decoded.

use std::fmt;
use std::io::Cursor;

use png::{ColorType, Limits, Transformations};
use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;

/// The longest content with an image, in bytes.
pub const CONTENT_BYTES_MAX: usize = 256 << 10;
/// The longest side of an image, in pixels.
pub const SIDE_MAX: usize = 512;
/// The longest side that a JPEG may claim. Its decoder tells larger ones from damage only if it takes them.
const SIDE_CLAIMED_MAX: usize = u16::MAX as usize;
/// The side of what the model sees, in pixels.
pub const SIDE: usize = 32;
/// The length of pixels as they are: red, green and blue of each, a byte each.
pub const PIXELS_BYTES: usize = SIDE * SIDE * 3;

/// Bytes that the decoder of PNG may take besides the image.
const PNG_BYTES_MAX: usize = 4 * SIDE_MAX * SIDE_MAX + (64 << 10);
/// Most passes over a progressive JPEG. Each takes time for all of the image.
const JPEG_SCANS_MAX: usize = 16;

const PNG_START: &[u8] = b"\x89PNG\r\n\x1a\n";
const JPEG_START: &[u8] = b"\xff\xd8\xff";

/// Why bytes are not an image that can be classified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadImage {
    /// They are neither PNG nor JPEG, and have another length than pixels as they are.
    Kind {
        /// How many they are.
        bytes: usize,
    },
    /// The image has too many pixels, or none.
    Size,
    /// The image is damaged, or of a kind that the decoder does not know.
    Damaged,
}

impl fmt::Display for BadImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kind { bytes } => write!(
                f,
                "these {bytes} bytes are no image: send PNG, JPEG, or {PIXELS_BYTES} bytes, of each of 32 x 32 pixels its red, green and blue"
            ),
            Self::Size => {
                write!(f, "the image has too many pixels, or none: send one of at most {SIDE_MAX} x {SIDE_MAX}")
            }
            Self::Damaged => {
                f.write_str("the image is damaged, or of a kind that is not known: send it as another PNG or JPEG")
            }
        }
    }
}

/// Returns the pixels that the model sees: 32 rows of 32 pixels. Other sizes are reduced or enlarged, and transparency is ignored.
///
/// # Errors
///
/// Why these bytes are no image that can be classified.
pub fn pixels(bytes: &[u8]) -> Result<[u8; PIXELS_BYTES], BadImage> {
    if bytes.starts_with(PNG_START) {
        return png(bytes);
    }
    if bytes.starts_with(JPEG_START) {
        return jpeg(bytes);
    }
    bytes.try_into().map_err(|_| BadImage::Kind { bytes: bytes.len() })
}

fn png(bytes: &[u8]) -> Result<[u8; PIXELS_BYTES], BadImage> {
    // The first chunk has the size (PNG, section 11.2.1). The decoder would fail on one that is too large before it tells it.
    if let Some(&[w0, w1, w2, w3, h0, h1, h2, h3]) = bytes.get(16..24) {
        check(u32::from_be_bytes([w0, w1, w2, w3]) as usize, u32::from_be_bytes([h0, h1, h2, h3]) as usize)?;
    }
    let mut decoder = png::Decoder::new_with_limits(Cursor::new(bytes), Limits { bytes: PNG_BYTES_MAX });
    decoder.set_transformations(Transformations::normalize_to_color8());
    decoder.set_ignore_text_chunk(true);
    let mut reader = decoder.read_info().map_err(|_| BadImage::Damaged)?;
    let (width, height) = (reader.info().width as usize, reader.info().height as usize);
    check(width, height)?;
    let size = reader.output_buffer_size().ok_or(BadImage::Size)?;
    let mut decoded = vec![0; size];
    reader.next_frame(&mut decoded).map_err(|_| BadImage::Damaged)?;
    let channels = match reader.output_color_type().0 {
        ColorType::Grayscale => 1,
        ColorType::GrayscaleAlpha => 2,
        ColorType::Rgb => 3,
        ColorType::Rgba => 4,
        ColorType::Indexed => return Err(BadImage::Damaged),
    };
    scale(&decoded, Layout { width, height, channels })
}

fn jpeg(bytes: &[u8]) -> Result<[u8; PIXELS_BYTES], BadImage> {
    let options = DecoderOptions::default()
        .set_max_width(SIDE_CLAIMED_MAX)
        .set_max_height(SIDE_CLAIMED_MAX)
        .jpeg_set_max_scans(JPEG_SCANS_MAX)
        .jpeg_set_out_colorspace(ColorSpace::RGB);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    decoder.decode_headers().map_err(|_| BadImage::Damaged)?;
    let info = decoder.info().ok_or(BadImage::Damaged)?;
    let (width, height) = (usize::from(info.width), usize::from(info.height));
    check(width, height)?;
    let decoded = decoder.decode().map_err(|_| BadImage::Damaged)?;
    scale(&decoded, Layout { width, height, channels: 3 })
}

fn check(width: usize, height: usize) -> Result<(), BadImage> {
    if (1..=SIDE_MAX).contains(&width) && (1..=SIDE_MAX).contains(&height) { Ok(()) } else { Err(BadImage::Size) }
}

/// How decoded pixels lie.
#[derive(Clone, Copy)]
struct Layout {
    width: usize,
    height: usize,
    /// Of which one or two are a brightness, and its opacity.
    channels: usize,
}

/// Returns the mean of the pixels that each pixel of the result covers; of a smaller image, the nearest.
fn scale(decoded: &[u8], Layout { width, height, channels }: Layout) -> Result<[u8; PIXELS_BYTES], BadImage> {
    if decoded.len() < width * height * channels {
        return Err(BadImage::Damaged);
    }
    let span = |at: usize, size: usize| {
        let start = at * size / SIDE;
        start..((at + 1) * size).div_ceil(SIDE).clamp(start + 1, size)
    };
    let mut pixels = [0; PIXELS_BYTES];
    for (index, pixel) in pixels.as_chunks_mut::<3>().0.iter_mut().enumerate() {
        let (rows, columns) = (span(index / SIDE, height), span(index % SIDE, width));
        let count = (rows.len() * columns.len()) as u32;
        let mut sums = [0_u32; 3];
        for row in rows {
            for column in columns.clone() {
                let at = (row * width + column) * channels;
                for (colour, sum) in sums.iter_mut().enumerate() {
                    *sum += u32::from(decoded[at + if channels < 3 { 0 } else { colour }]);
                }
            }
        }
        *pixel = sums.map(|sum| ((sum + count / 2) / count) as u8);
    }
    Ok(pixels)
}
