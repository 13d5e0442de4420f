//! Does with its files what messages ask for, by the standard library, and answers with the result. It sends other packets back, and keeps
//! their number in a file.
//!
//! Its configuration, if any, selects a fault during initialisation: `leak` leaves a file open, `write` makes a file.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};

use pinion_hostile_guests::answer;
use pinion_sdk::{Batch, Function, InitError, Message, info};

/// The number of packets, in an instance's own files.
const VISITS: &str = "/visits";

struct Files {
    /// Read during initialisation, if the file existed.
    greeting: Option<String>,
}

impl Function for Files {
    fn init(config: &[u8]) -> Result<Self, InitError> {
        match config {
            b"leak" => std::mem::forget(File::open("/greeting").map_err(InitError::new)?),
            b"write" => {
                let error = fs::write("/written", "early").err();
                return Err(InitError::new(format!("writing came to {:?}", error.map(|error| error.kind()))));
            }
            _ => {}
        }
        Ok(Self { greeting: fs::read_to_string("/greeting").ok() })
    }

    fn handle(&mut self, batch: Batch<'_>) {
        for packet in batch {
            match Message::of(packet) {
                Ok(message) => {
                    let asked = String::from_utf8_lossy(message.payload()).into_owned();
                    let answer = self.act(&asked).unwrap_or_else(|error| format!("error: {:?}", error.kind()));
                    let _ = message.answer(answer.as_bytes());
                }
                Err(packet) => {
                    let visits = fs::read_to_string(VISITS).map_or(0, |text| text.parse().unwrap_or(u32::MAX)) + 1;
                    let kept = fs::write(VISITS, visits.to_string());
                    info!("visit {visits}, kept: {kept:?}");
                    answer(packet);
                }
            }
        }
    }
}

impl Files {
    fn act(&self, asked: &str) -> io::Result<String> {
        let words: Vec<&str> = asked.split_whitespace().collect();
        match *words {
            ["greeting"] => Ok(self.greeting.clone().unwrap_or_else(|| "none".to_owned())),
            ["read", path] => fs::read_to_string(path),
            ["sum", path] => Ok(fs::read(path)?.iter().map(|byte| u64::from(*byte)).sum::<u64>().to_string()),
            ["write", path, text] => fs::write(path, text).map(|()| "written".to_owned()),
            ["append", path, text] => {
                OpenOptions::new().append(true).open(path)?.write_all(text.as_bytes())?;
                Ok("appended".to_owned())
            }
            ["from", path, place] => {
                let mut file = File::open(path)?;
                file.seek(SeekFrom::Start(place.parse().unwrap_or(0)))?;
                let mut text = String::new();
                file.read_to_string(&mut text)?;
                Ok(text)
            }
            ["cut", path, len] => {
                OpenOptions::new().write(true).open(path)?.set_len(len.parse().unwrap_or(0))?;
                Ok("cut".to_owned())
            }
            ["list", path] => list(path),
            ["stat", path] => {
                let stat = fs::metadata(path)?;
                let times = [stat.modified()?, stat.accessed()?];
                let are_zero = times.iter().all(|time| *time == std::time::SystemTime::UNIX_EPOCH);
                Ok(format!("{} bytes, directory: {}, times are zero: {are_zero}", stat.len(), stat.is_dir()))
            }
            ["mkdir", path] => fs::create_dir_all(path).map(|()| "made".to_owned()),
            ["rename", from, to] => fs::rename(from, to).map(|()| "renamed".to_owned()),
            ["remove", path] => fs::remove_file(path).map(|()| "removed".to_owned()),
            ["remove-all", path] => fs::remove_dir_all(path).map(|()| "removed".to_owned()),
            ["fill", path] => Ok(fill(path)),
            ["open-many", path] => Ok(open_many(path)),
            _ => Ok("what?".to_owned()),
        }
    }
}

fn list(path: &str) -> io::Result<String> {
    let mut names = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let slash = if entry.file_type()?.is_dir() { "/" } else { "" };
        names.push(format!("{}{slash}", entry.file_name().to_string_lossy()));
    }
    names.sort();
    Ok(names.join(" "))
}

/// Writes until there is no room; returns the number of bytes and the error.
fn fill(path: &str) -> String {
    let (mut written, chunk) = (0, [b'x'; 8192]);
    let mut file = match File::create(path) {
        Ok(file) => file,
        Err(error) => return format!("not made: {:?}", error.kind()),
    };
    loop {
        match file.write(&chunk) {
            Ok(bytes) => written += bytes,
            Err(error) => return format!("{written} bytes, then {:?}", error.kind()),
        }
    }
}

fn open_many(path: &str) -> String {
    let mut open = Vec::new();
    loop {
        match File::open(path) {
            Ok(file) => open.push(file),
            Err(error) => return format!("{} open, then {error}", open.len()),
        }
    }
}

pinion_sdk::export!(Files);
