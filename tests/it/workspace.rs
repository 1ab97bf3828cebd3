//! The packages of the workspace and what builds them.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use kaskade_testkit::{ROOT, text};

/// A build in a container sees what .dockerignore lets through, and cargo needs every member of the workspace.
#[test]
fn the_container_build_contains_every_workspace_member() {
    let read = |name: &str| std::fs::read_to_string(Path::new(ROOT).join(name)).unwrap();
    let manifest: toml::Table = read("Cargo.toml").parse().unwrap();
    let (members, ignored) = (&manifest["workspace"]["members"], read(".dockerignore"));
    let kept: Vec<&str> = ignored
        .lines()
        .filter_map(|line| line.strip_prefix('!'))
        .collect();
    for member in members.as_array().unwrap() {
        let member = member.as_str().unwrap();
        assert!(
            kept.iter().any(|kept| Path::new(member).starts_with(kept)),
            "`{member}` is not in .dockerignore"
        );
    }
}

/// The packages that a build compiles, each with its features.
fn compiled(selected: &[&str]) -> BTreeSet<String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args([
            "tree",
            "--locked",
            "--offline",
            "--prefix",
            "none",
            "--format",
            "{p} with {f}",
        ])
        .args(selected)
        .current_dir(ROOT)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let lines = text(&output.stdout);
    lines
        .lines()
        .map(|line| line.trim_end_matches(" (*)").to_owned())
        .filter(|line| !line.is_empty())
        .collect()
}

/// A feature that only a test asks for has cargo compile the package again, and everything that uses it.
#[test]
fn the_tests_reuse_what_the_build_of_the_program_compiled() {
    let program = compiled(&["--package", "kaskade", "--edges", "normal,build"]);
    let tests = compiled(&["--workspace", "--edges", "normal,build,dev"]);
    let again: Vec<&String> = program.difference(&tests).collect();
    assert!(program.len() > 100, "{program:?}");
    assert!(
        again.is_empty(),
        "with the tests these have other features, so name the features in the workspace's dependencies: {again:#?}"
    );
}

/// The unit tests of a crate are built by a package of their own, from the same sources.
#[test]
fn a_package_of_unit_tests_has_the_dependencies_of_its_crate() {
    let read = |path: &Path| -> toml::Table {
        let text = std::fs::read_to_string(Path::new(ROOT).join(path).join("Cargo.toml")).unwrap();
        text.parse().unwrap()
    };
    let workspace = read(Path::new(""));
    let members = workspace["workspace"]["members"].as_array().unwrap();
    let mut compared = 0;
    for unit in members {
        let unit = Path::new(unit.as_str().unwrap());
        if !unit.ends_with("tests/unit") {
            continue;
        }
        let its_crate = unit.ancestors().nth(2).unwrap();
        let (own, tested) = (read(unit), read(its_crate));
        for table in ["dependencies", "dev-dependencies"] {
            assert_eq!(own.get(table), tested.get(table), "{table} of {}", unit.display());
        }
        assert_eq!(
            tested["lib"]["test"],
            false.into(),
            "{} tests twice",
            its_crate.display()
        );
        let name = own["package"]["name"].as_str().unwrap();
        let level = &workspace["profile"]["release"]["package"][name]["opt-level"];
        assert_eq!(level, &0.into(), "{name}");
        compared += 1;
    }
    assert!(compared > 3, "{compared}");
}

/// Files that import each other can only be read together.
#[test]
fn files_import_each_other_in_small_circles_of_one_folder_only() {
    passes("scripts/import-circles.py");
}

#[test]
fn tables_of_modules_name_every_module() {
    passes("scripts/module-tables.py");
}

/// ARCHITECTURE.md lists for each crate what it depends on, and only crates further down.
#[test]
fn the_table_of_crates_is_that_of_the_manifests() {
    let read = |path: &str| std::fs::read_to_string(Path::new(ROOT).join(path)).unwrap();
    let page = read("ARCHITECTURE.md");
    let table = page.split("| crate | depends on |").nth(1).unwrap();
    let table = table.split("\n\n").next().unwrap();
    let short = |name: &str| {
        name.trim()
            .trim_matches('`')
            .trim_start_matches("kaskade-")
            .to_owned()
    };
    let rows: Vec<(Vec<String>, BTreeSet<String>)> = table
        .lines()
        .skip(2)
        .map(|row| {
            let cells: Vec<&str> = row.trim_matches('|').split('|').collect();
            let list = |cell: &str| cell.split(',').map(short).collect::<Vec<_>>();
            let used = if cells[1].contains("no crate") {
                Vec::new()
            } else {
                list(cells[1])
            };
            (list(cells[0]), used.into_iter().collect())
        })
        .collect();
    let folders = [
        ".",
        "papers",
        "papers/stated",
        "app",
        "gateway",
        "actors",
        "remote",
        "oip",
        "plans/planners",
        "plans/simulator",
        "models",
        "plans/policy",
        "broker",
        "telemetry",
    ];
    for folder in folders {
        let manifest: toml::Table = read(&format!("{folder}/Cargo.toml")).parse().unwrap();
        let name = short(manifest["package"]["name"].as_str().unwrap());
        let used = manifest["dependencies"].as_table().unwrap().keys();
        let used: BTreeSet<String> = used
            .filter(|key| key.starts_with("kaskade-"))
            .map(|key| short(key))
            .collect();
        let place = rows
            .iter()
            .position(|(crates, _)| crates.contains(&name))
            .unwrap();
        assert_eq!(rows[place].1, used, "{name}");
        let below: BTreeSet<&String> = rows[place + 1..].iter().flat_map(|(crates, _)| crates).collect();
        assert!(used.iter().all(|used| below.contains(used)), "{name}");
    }
}

fn passes(script: &str) {
    let script = Path::new(ROOT).join(script);
    let output = Command::new("python3")
        .arg(script)
        .current_dir(ROOT)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}{}",
        text(&output.stdout),
        text(&output.stderr)
    );
}
