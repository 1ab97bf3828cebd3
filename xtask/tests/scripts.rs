//! Scripts of `scripts/` with stubs of the programs that they call.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail it")]

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

fn stub(folder: &Path, name: &str, script: &str) {
    let path = folder.join(name);
    std::fs::write(&path, format!("#!/bin/bash\n{script}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_benchmark_that_fails_ends_the_program_that_watches_it_and_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let (here, temporary) = (folder.path(), folder.path().join("temporary"));
    std::fs::create_dir(&temporary).unwrap();
    let pid_file = here.join("pid");
    stub(
        here,
        "cargo",
        &format!(r#"echo '{{"executable": "{}/bench"}}'"#, here.display()),
    );
    stub(
        here,
        "nvidia-smi",
        &format!("echo $$ >'{}'; exec sleep 600", pid_file.display()),
    );
    stub(
        here,
        "bench",
        &format!(
            "until [ -s '{}' ]; do sleep 0.05; done; exit 1",
            pid_file.display()
        ),
    );
    let path = std::env::var("PATH").unwrap();
    let done = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/offload-cuda.sh"))
        .env("PATH", format!("{}:{path}", here.display()))
        .env("TMPDIR", &temporary)
        .output()
        .unwrap();
    assert!(!done.status.success());
    let pid = std::fs::read_to_string(pid_file).unwrap();
    assert!(!Path::new("/proc").join(pid.trim()).exists());
    assert_eq!(std::fs::read_dir(temporary).unwrap().count(), 0);
}
