//! Energy of a CPU from RAPL, through Linux's `/sys/class/powercap`.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Returns whether a zone counts towards the CPU's energy: packages, and memory if it has its own zone. Other zones
/// are parts of a package (`core`, `uncore`) or contain it (`psys`).
fn counts(zone: &str) -> bool {
    zone.starts_with("package") || zone == "dram"
}

pub(super) struct Rapl {
    zones: Vec<Zone>,
}

struct Zone {
    counter: PathBuf,
    /// Maximum value of the counter before it wraps, microjoules.
    range_uj: u64,
    last_uj: u64,
    /// Energy since the reader was opened, microjoules.
    total_uj: u64,
}

impl Rapl {
    /// Opens all zones below `root` and reads them once.
    pub(super) fn open(root: &Path) -> Result<Self, String> {
        let entries = fs::read_dir(root).map_err(|error| shown(root, &error))?;
        let mut folders: Vec<PathBuf> = entries
            .filter_map(Result::ok)
            .filter(|entry| entry.file_name().to_string_lossy().starts_with("intel-rapl:"))
            .map(|entry| entry.path())
            .collect();
        folders.sort();
        let zones = folders
            .iter()
            .filter(|folder| fs::read_to_string(folder.join("name")).is_ok_and(|name| counts(name.trim())))
            .map(|folder| Zone::open(folder))
            .collect::<Result<Vec<_>, _>>()?;
        if zones.is_empty() {
            return Err(format!("no processor package under {}", root.display()));
        }
        Ok(Self { zones })
    }

    /// Returns the energy since the reader was opened, joules; `None` if a zone cannot be read. Counters have 32 bits
    /// of some microjoules and wrap after minutes under load, so call this more often than that.
    pub(super) fn joules(&mut self) -> Option<f64> {
        let readings = self
            .zones
            .iter()
            .map(Zone::read)
            .collect::<Result<Vec<_>, _>>()
            .ok()?;
        let mut total_uj = 0;
        for (zone, now_uj) in self.zones.iter_mut().zip(readings) {
            zone.total_uj = zone
                .total_uj
                .saturating_add(counted(zone.last_uj, now_uj, zone.range_uj)?);
            zone.last_uj = now_uj;
            total_uj += zone.total_uj;
        }
        Some(total_uj as f64 / 1e6)
    }
}

impl Zone {
    fn open(folder: &Path) -> Result<Self, String> {
        let mut zone = Self {
            counter: folder.join("energy_uj"),
            range_uj: number(&folder.join("max_energy_range_uj"))?,
            last_uj: 0,
            total_uj: 0,
        };
        zone.last_uj = zone.read()?;
        counted(zone.last_uj, zone.last_uj, zone.range_uj)
            .ok_or_else(|| format!("{} exceeds its own range", zone.counter.display()))?;
        Ok(zone)
    }

    fn read(&self) -> Result<u64, String> {
        number(&self.counter)
    }
}

/// Returns the difference of two readings of a counter that wraps after `range`, at most once in between, microjoules.
fn counted(before: u64, after: u64, range: u64) -> Option<u64> {
    if before > range || after > range {
        return None;
    }
    Some(
        after
            .checked_sub(before)
            .unwrap_or_else(|| range - before + after),
    )
}

fn number(file: &Path) -> Result<u64, String> {
    let text = fs::read_to_string(file).map_err(|error| shown(file, &error))?;
    text.trim()
        .parse()
        .map_err(|_| format!("{} does not hold a number", file.display()))
}

fn shown(path: &Path, error: &std::io::Error) -> String {
    match error.kind() {
        ErrorKind::NotFound => format!("{} does not exist", path.display()),
        // Since 2020 only root can read the counters by default, because they leak information about other processes.
        ErrorKind::PermissionDenied => format!(
            "{} may not be read; an administrator can allow it with `chmod a+r`",
            path.display()
        ),
        _ => format!("{}: {error}", path.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn zone(root: &Path, folder: &str, name: &str, energy: &str, range: &str) {
        let folder = root.join(folder);
        fs::create_dir_all(&folder).unwrap();
        for (file, content) in [
            ("name", name),
            ("energy_uj", energy),
            ("max_energy_range_uj", range),
        ] {
            fs::write(folder.join(file), format!("{content}\n")).unwrap();
        }
    }

    fn set(root: &Path, folder: &str, energy: &str) {
        fs::write(root.join(folder).join("energy_uj"), energy).unwrap();
    }

    #[test]
    fn packages_and_memory_are_summed_without_their_parts() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        zone(root, "intel-rapl:0", "package-0", "1000000", "10000000");
        zone(root, "intel-rapl:0:0", "core", "5", "10000000");
        zone(root, "intel-rapl:0:1", "dram", "0", "10000000");
        zone(root, "intel-rapl:1", "package-1", "2000000", "10000000");
        zone(root, "intel-rapl:2", "psys", "7", "10000000");
        zone(root, "intel-rapl-mmio:0", "package-0", "9", "10000000");
        let mut rapl = Rapl::open(root).unwrap();
        assert_eq!(rapl.joules(), Some(0.0));
        set(root, "intel-rapl:0", "3000000");
        set(root, "intel-rapl:0:0", "9000000");
        set(root, "intel-rapl:0:1", "500000");
        set(root, "intel-rapl:2", "9000000");
        set(root, "intel-rapl-mmio:0", "9000000");
        assert_eq!(rapl.joules(), Some(2.5));
    }

    #[test]
    fn a_wrapping_counter_continues() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        zone(root, "intel-rapl:0", "package-0", "9000000", "10000000");
        let mut rapl = Rapl::open(root).unwrap();
        set(root, "intel-rapl:0", "1000000");
        assert_eq!(rapl.joules(), Some(2.0));
        set(root, "intel-rapl:0", "4000000");
        assert_eq!(rapl.joules(), Some(5.0));
    }

    #[test]
    fn a_failed_reading_is_unknown_and_included_in_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        zone(root, "intel-rapl:0", "package-0", "0", "10000000");
        zone(root, "intel-rapl:1", "package-1", "0", "10000000");
        let mut rapl = Rapl::open(root).unwrap();
        set(root, "intel-rapl:0", "1000000");
        for garbage in ["", "many", "-5", "1.5", "99999999999999999999999"] {
            set(root, "intel-rapl:1", garbage);
            assert_eq!(rapl.joules(), None, "{garbage:?}");
        }
        fs::remove_file(root.join("intel-rapl:1/energy_uj")).unwrap();
        assert_eq!(rapl.joules(), None);
        set(root, "intel-rapl:1", "3000000");
        assert_eq!(rapl.joules(), Some(4.0));
    }

    #[test]
    fn invalid_counters_are_rejected_with_a_reason() {
        let dir = tempfile::tempdir().unwrap();
        let rejection = |root: &Path| Rapl::open(root).err().unwrap_or_default();
        assert!(rejection(&dir.path().join("absent")).contains("does not exist"));
        assert!(rejection(dir.path()).contains("no processor package"));
        zone(dir.path(), "intel-rapl:0", "package-0", "11", "10");
        assert!(rejection(dir.path()).contains("exceeds its own range"));
        zone(dir.path(), "intel-rapl:0", "package-0", "soon", "10");
        assert!(rejection(dir.path()).contains("does not hold a number"));
        fs::remove_file(dir.path().join("intel-rapl:0/max_energy_range_uj")).unwrap();
        assert!(rejection(dir.path()).contains("max_energy_range_uj does not exist"));
    }

    #[test]
    fn a_denied_permission_is_named() {
        let denied = std::io::Error::from(ErrorKind::PermissionDenied);
        let reason = shown(Path::new("/zone/energy_uj"), &denied);
        assert!(reason.contains("/zone/energy_uj may not be read"), "{reason}");
    }

    proptest! {
        #[test]
        fn what_is_counted_is_what_was_added(range in 1_u64.., start in any::<u64>(), step in any::<u64>()) {
            let start = start % range;
            let step = step % range;
            let after = (u128::from(start) + u128::from(step)) % u128::from(range);
            prop_assert_eq!(counted(start, after as u64, range), Some(step));
        }
    }
}
