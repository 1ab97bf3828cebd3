//! Faults of clocks, permissions and files.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use kaskade_actors::App;
use kaskade_actors::ops::permissions::{Permissions, Role, permissions};
use kaskade_testkit::NatsOptions;

use super::scenarios;
use crate::deployed_plan::APP;
use crate::faults::oracle::{Load, connect, under};
use crate::faults::rig::{Rig, Start, pair};
use crate::faults::verdict::Verdict;

scenarios! {
    "clock-jump" "The wall clock of the ingress and of a worker jumps an hour ahead and then two back; budgets are relative, and no request fails." clock_jump;
    "unauthorised" "A client with the permissions of a client tries to answer requests, write plans, shift gears, and send heartbeats of workers." unauthorised;
    "corrupt-weights" "A process is started on truncated weights and on weights with changed bytes; it names the file and exits, and the running processes serve on." corrupt;
}

/// A library that shifts the wall clock of the process that loads it, by the seconds in a file.
const SHIM: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);
    if (clock == CLOCK_REALTIME) {
        FILE *file = fopen(getenv("CLOCK_OFFSET"), "r");
        long offset = 0;
        if (file) { if (fscanf(file, "%ld", &offset) != 1) offset = 0; fclose(file); }
        now->tv_sec += offset;
    }
    return result;
}
"#;

async fn clock_jump() -> anyhow::Result<Verdict> {
    let rig = Rig::new()?;
    let (source, library, offset) = (rig.file("shim.c"), rig.file("shim.so"), rig.file("offset"));
    std::fs::write(&source, SHIM)?;
    std::fs::write(&offset, "0")?;
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .args([&library, &source])
        .arg("-ldl")
        .status()
        .context("shifting the clock needs a C compiler")?;
    ensure!(
        compiled.success(),
        "the library that shifts the clock was not compiled"
    );
    let moved = |start: Start<'static>| {
        start
            .variable("LD_PRELOAD", &library)
            .variable("CLOCK_OFFSET", &offset)
    };
    let _first = rig.start(&moved(Start::worker("w1")))?;
    let _second = rig.start(&Start::worker("w2"))?;
    let _ingress = rig.start(&moved(Start::ingress().flag("--durable")))?;
    let seen = || -> anyhow::Result<String> {
        let date = Command::new("date")
            .arg("+%s")
            .env("LD_PRELOAD", &library)
            .env("CLOCK_OFFSET", &offset)
            .output()?;
        Ok(String::from_utf8_lossy(&date.stdout).trim().to_owned())
    };
    let honest: i64 = seen()?.parse()?;
    let mut jumped = 0_i64;
    let tally = under(&Load::at(&rig.nats.url()), async || {
        std::fs::write(&offset, "3600")?;
        let struck = Instant::now();
        jumped = seen()?.parse::<i64>()? - honest;
        tokio::time::sleep(Duration::from_millis(500)).await;
        std::fs::write(&offset, "-3600")?;
        Ok(struck)
    })
    .await?;
    Ok(Verdict::from_tally(&tally)
        .without_faults()
        .demand((3_590..3_700).contains(&jumped), "the clock jumps"))
}

/// A server with two users by password: one for the app's processes, and a client.
fn guarded(app: &App) -> anyhow::Result<NatsOptions> {
    let users = [("app", Role::All), ("client", Role::Client)]
        .iter()
        .map(|(name, role)| {
            let may = permissions(app, role, name)?;
            Ok(format!(
                "{{ user: {name}, password: {name}, permissions: {{ publish: {}, subscribe: {} }} }}",
                quoted(&may, |may| &may.publish)?,
                quoted(&may, |may| &may.subscribe)?
            ))
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    Ok(NatsOptions {
        config: format!("authorization {{ users: [ {} ] }}", users.join("\n")),
        ..NatsOptions::jetstream()
    })
}

fn quoted(may: &Permissions, which: impl Fn(&Permissions) -> &Vec<String>) -> anyhow::Result<String> {
    // Users by password use the default inbox prefix.
    let mut subjects = which(may).clone();
    subjects.push("_INBOX.>".to_owned());
    Ok(serde_json::to_string(&subjects)?)
}

async fn unauthorised() -> anyhow::Result<Verdict> {
    let app = App::new(APP)?;
    let rig = Rig::with(guarded(&app)?, &pair())?;
    let address = |user: &str| {
        rig.nats
            .url()
            .replace("nats://", &format!("nats://{user}:{user}@"))
    };
    let _first = rig.start(&Start::worker("w1").through(address("app")))?;
    let _second = rig.start(&Start::worker("w2").through(address("app")))?;
    let _ingress = rig.start(&Start::ingress().through(address("app")))?;
    let intruder = connect(&address("client")).await?;
    let subjects = [
        "stage.small",
        "replica.small-w1",
        "done.x.1",
        "beat.small-w1",
        "gear",
        "plan",
        "replan",
        "event.load",
        "stage_cancel",
        "result.x",
        "dead.x",
    ]
    .map(|tail| format!("kaskade.{APP}.{tail}"))
    .into_iter()
    .chain([
        format!("$KV.kaskade-{APP}.plan"),
        format!("$JS.API.STREAM.DELETE.KV_kaskade-{APP}"),
    ])
    .collect::<Vec<_>>();
    let tally = under(&Load::at(&address("client")), async || {
        for _ in 0..20 {
            for subject in &subjects {
                intruder
                    .publish(subject.clone(), Bytes::from_static(b"\x80"))
                    .await?;
            }
            intruder.flush().await?;
        }
        Ok(Instant::now())
    })
    .await?;
    let log = rig.nats.log();
    let violations = subjects.iter().filter(|subject| {
        let refused = format!("Subject \"{subject}\"");
        log.lines()
            .any(|line| line.contains("Publish Violation") && line.contains(&refused))
    });
    let violations = violations.count();
    Ok(Verdict::from_tally(&tally)
        .without_faults()
        .demand(violations == subjects.len(), "the server refuses every subject")
        .note(format!("{violations} of {} subjects refused", subjects.len())))
}

async fn corrupt() -> anyhow::Result<Verdict> {
    let rig = Rig::new()?;
    let _processes = rig.start_all()?;
    let kaskade = std::env::current_exe()?.with_file_name("kaskade");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["build", "--quiet", "--release", "--workspace", "--bin", "kaskade"])
        .status()?;
    ensure!(
        built.success() && kaskade.is_file(),
        "there is no {}",
        kaskade.display()
    );
    let examples =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/digits/weights/digits-tiny");
    let mut said = Vec::new();
    let tally = under(&Load::at(&rig.nats.url()), async || {
        let begun = Instant::now();
        for (name, spoil) in [("short", cut as Spoil), ("other", flip as Spoil)] {
            let folder = rig.file(name);
            std::fs::create_dir_all(&folder)?;
            for file in std::fs::read_dir(&examples)? {
                let file = file?;
                std::fs::copy(file.path(), folder.join(file.file_name()))?;
            }
            let weights = folder.join("model.safetensors");
            std::fs::write(&weights, spoil(std::fs::read(&weights)?))?;
            let app = rig.file(&format!("{name}.toml"));
            std::fs::write(
                &app,
                format!(
                    "name = \"{name}\"\n[[variants]]\nname = \"tiny\"\ndir = \"{}\"\n",
                    folder.display()
                ),
            )?;
            let ended = Command::new(&kaskade)
                .args(["serve", "--nats", &rig.nats.url(), "--app"])
                .arg(&app)
                .output()?;
            said.push((
                ended.status.success(),
                String::from_utf8_lossy(&ended.stderr).into_owned(),
            ));
        }
        Ok(begun)
    })
    .await?;
    let named = said
        .iter()
        .all(|(started, error)| !started && error.contains("model.safetensors"));
    Ok(Verdict::from_tally(&tally).without_faults().demand(
        named,
        &format!("the process does not start, and names the file: {said:?}"),
    ))
}

type Spoil = fn(Vec<u8>) -> Vec<u8>;

fn cut(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.truncate(bytes.len() / 2);
    bytes
}

/// Changes the header: a changed weight cannot be detected unless it becomes NaN.
fn flip(mut bytes: Vec<u8>) -> Vec<u8> {
    for byte in bytes.iter_mut().take(64) {
        *byte ^= 0x55;
    }
    bytes
}
