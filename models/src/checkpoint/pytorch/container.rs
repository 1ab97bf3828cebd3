//! The two containers: ZIP archives, and sequences of pickles.

use std::collections::BTreeMap;

use rawzip::{CompressionMethod, RECOMMENDED_BUFFER_SIZE, ReaderAt};

use super::pickle::{Pickle, Value};
use super::storage::storage_type;
use crate::checkpoint::weights::Source;

/// First bytes of a ZIP archive.
const ZIP: &[u8] = b"PK\x03\x04";
/// First bytes of a sequence of pickles: a pickle of the protocol 2 that holds PyTorch's magic number.
const LEGACY: &[u8] = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.";
/// Maximum size of the pickles, bytes. A tensor takes about 200 bytes.
const MAX_PICKLE: u64 = 32 << 20;
/// Maximum number of entries of an archive.
const MAX_ENTRIES: usize = 1 << 20;

/// Returns whether a file was written by `torch.save`.
pub(in crate::checkpoint) fn is_pytorch(source: &Source, length: u64) -> bool {
    let first = source
        .read(0, length.min(LEGACY.len() as u64))
        .unwrap_or_default();
    first.starts_with(ZIP) || first.starts_with(LEGACY)
}

/// A file with its pickle and the places of its storages.
#[derive(Debug)]
pub(super) struct Container {
    /// The pickle of the saved object.
    pub(super) pickle: Vec<u8>,
    /// Byte range of each storage in the file.
    pub(super) storages: BTreeMap<String, (u64, u64)>,
}

impl Container {
    /// Finds the parts of a file of `length` bytes.
    ///
    /// # Errors
    /// The reason why the file is malformed.
    pub(super) fn open(source: &Source, length: u64) -> Result<Self, String> {
        if source.read(0, ZIP.len() as u64)? == ZIP {
            Self::of_archive(source, length)
        } else {
            Self::of_sequence(source, length)
        }
    }

    fn of_archive(source: &Source, length: u64) -> Result<Self, String> {
        let mut entries =
            entries(source, length).map_err(|error| format!("its ZIP archive is malformed: {error}"))?;
        let ending = |end: &str| {
            let names = entries.keys();
            names.into_iter().find(|name| name.ends_with(end)).cloned()
        };
        let pickle = ending("/data.pkl")
            .ok_or("its ZIP archive has no `data.pkl`: it is not a file of `torch.save`")?;
        let folder = pickle.trim_end_matches("data.pkl").to_owned();
        let mut content = |name: &str| match entries.remove(&format!("{folder}{name}")) {
            Some((start, end)) if end - start > MAX_PICKLE => {
                Err(format!("its `{name}` has more than {MAX_PICKLE} bytes"))
            }
            Some((start, end)) => source.read(start, end - start).map(Some),
            None => Ok(None),
        };
        if content("byteorder")?.is_some_and(|order| order != b"little") {
            return Err("its numbers are big-endian".into());
        }
        let pickle = content("data.pkl")?.unwrap_or_default();
        let data = format!("{folder}data/");
        let storages = entries.into_iter();
        let storages =
            storages.filter_map(|(name, range)| Some((name.strip_prefix(&data)?.to_owned(), range)));
        Ok(Self {
            pickle,
            storages: storages.collect(),
        })
    }

    /// Reads the sequence: magic number, version, properties of the machine, the object, the keys of the storages;
    /// then, per storage, its number of elements (8 bytes) and its elements.
    fn of_sequence(source: &Source, length: u64) -> Result<Self, String> {
        let start = source.read(0, length.min(MAX_PICKLE))?;
        let mut at = 0;
        let mut next = || {
            let pickle = Pickle::read(start.get(at..).unwrap_or_default())?;
            let range = at..at + pickle.bytes;
            at = range.end;
            Ok::<_, String>((pickle, range))
        };
        let _magic = next()?;
        let _version = next()?;
        let (machine, _) = next()?;
        let properties = machine.items(machine.root).unwrap_or_default();
        if properties
            .iter()
            .any(|(key, value)| machine.text(*key) == Some("little_endian") && *value != Value::Bool(true))
        {
            return Err("its numbers are big-endian".into());
        }
        let (object, range) = next()?;
        let (keys, _) = next()?;
        let keys = keys
            .sequence(keys.root)
            .and_then(|all| all.iter().map(|key| keys.text(*key)).collect::<Option<Vec<_>>>())
            .ok_or("it does not list its storages")?;
        let sizes = object.storage_elements();
        let mut storages = BTreeMap::new();
        let mut at = at as u64;
        for key in keys {
            let elements = source.read(at, 8)?.try_into().map_or(0, u64::from_le_bytes);
            let size = sizes
                .get(key)
                .copied()
                .ok_or_else(|| format!("its storage `{key}` belongs to no tensor"))?;
            let end = elements
                .checked_mul(size)
                .and_then(|bytes| bytes.checked_add(at + 8))
                .filter(|end| *end <= length)
                .ok_or_else(|| format!("it ends in the storage `{key}`"))?;
            storages.insert(key.to_owned(), (at + 8, end));
            at = end;
        }
        Ok(Self {
            pickle: start.get(range).unwrap_or_default().to_vec(),
            storages,
        })
    }
}

impl Pickle {
    /// Returns the element size of each storage, bytes.
    fn storage_elements(&self) -> BTreeMap<&str, u64> {
        let storages = self.storages().filter_map(|storage| {
            let dtype = storage_type(storage.kind)?;
            Some((storage.key, dtype.bitsize() as u64 / 8))
        });
        storages.collect()
    }
}

/// Reads a file at an offset.
struct At<'a>(&'a Source, u64);

impl ReaderAt for At<'_> {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<usize> {
        let there = self.1.saturating_sub(offset).min(buffer.len() as u64);
        let bytes = self.0.read(offset, there).map_err(std::io::Error::other)?;
        let slots = buffer.get_mut(..bytes.len()).unwrap_or_default();
        slots.copy_from_slice(&bytes);
        Ok(slots.len())
    }
}

/// Returns the byte ranges of an archive's entries, which are stored without compression.
fn entries(source: &Source, length: u64) -> Result<BTreeMap<String, (u64, u64)>, String> {
    let text = |error: rawzip::Error| error.to_string();
    let mut buffer = vec![0; RECOMMENDED_BUFFER_SIZE];
    let archive = rawzip::ZipLocator::new()
        .locate_in_reader(At(source, length), &mut buffer, length)
        .map_err(|(_, error)| text(error))?;
    let mut found = BTreeMap::new();
    let mut entries = archive.entries(&mut buffer);
    while let Some(entry) = entries.next_entry().map_err(text)? {
        let name = String::from_utf8_lossy(entry.file_path().as_ref()).into_owned();
        if entry.compression_method() != CompressionMethod::STORE {
            return Err(format!("`{name}` is compressed"));
        }
        let (start, end) = archive
            .get_entry(entry.wayfinder())
            .map_err(text)?
            .compressed_data_range();
        if start > end || end > length {
            return Err(format!("`{name}` exceeds the file"));
        }
        if found.len() >= MAX_ENTRIES {
            return Err(format!("it has more than {MAX_ENTRIES} entries"));
        }
        if found.insert(name.clone(), (start, end)).is_some() {
            return Err(format!("it has `{name}` twice"));
        }
    }
    Ok(found)
}
