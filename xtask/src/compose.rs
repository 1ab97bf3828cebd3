//! `cargo xtask compose`: runs the steps of examples/compose: start, a request from outside, a scale-up and a rolling restart
//! of every service under load. No request may be lost.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use humantime::Duration as Span;

/// Options of the run.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Requests per second during the restarts.
    #[arg(long, default_value_t = 100)]
    rate: u32,
    /// Duration of the load; it must cover all restarts.
    #[arg(long, default_value = "100s")]
    duration: Span,
    /// Keep the containers running afterwards.
    #[arg(long)]
    keep: bool,
    /// Exit with code 75 and a notice if containers cannot be started.
    #[arg(long)]
    if_possible: bool,
    /// target/release/kaskade is up to date; do not build it.
    #[arg(long)]
    built: bool,
}

/// Base images, as the Dockerfile and the compose file name them.
const BASES: [&str; 2] = ["debian:12.12-slim", "nats:2.15.1"];

/// Project of the run, whose containers and volumes are deleted afterwards, and the ports that it publishes: apart from a
/// deployment by docker/compose.yaml on this machine.
const PROJECT: &str = "kaskade-xtask";
const NATS: &str = "127.0.0.1:14222";
const HTTP: &str = "127.0.0.1:18080";

/// Time within which a service must become ready: the start period of the image's health check.
const READY_TIMEOUT: Duration = Duration::from_mins(5);

/// Time in which the Docker engine must answer `docker-compose`, whose default of 60 s a busy machine exceeds, seconds.
const ENGINE_TIMEOUT_S: &str = "300";

/// Time for a server of the cluster to catch up before the next one is replaced.
const SETTLING: Duration = Duration::from_secs(5);

/// Maximum number of times the services are started.
const UPS: u32 = 5;

/// Exit code if what the run needs cannot be had, as of the scripts of the gate.
const UNAVAILABLE: u8 = 75;

/// Runs all steps; fails if a request was lost.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let compose = match prepared(args) {
        Err(error) if args.if_possible => {
            println!("docker/compose.yaml was NOT run: {error:#}");
            return Ok(ExitCode::from(UNAVAILABLE));
        }
        prepared => prepared?,
    };
    let result = steps(&compose, args);
    if result.is_err() {
        for look in [&["ps"][..], &["logs", "--tail", "5"]] {
            let seen = compose.output(look);
            eprintln!("{}", seen.map(|seen| text(&seen.stdout)).unwrap_or_default());
        }
    }
    if !args.keep {
        compose.call(&["down", "--volumes", "--timeout", "5"])?;
    }
    result.map(|()| ExitCode::SUCCESS)
}

/// Checks for a Docker engine and compose, and builds the images.
fn prepared(args: &Args) -> anyhow::Result<Compose> {
    let engine = done(Command::new("docker").arg("info"));
    ensure!(engine, "there is no Docker engine (`docker info` fails)");
    let compose = Compose::find()?;
    images(&compose.root)?;
    if !args.built {
        succeeds(cargo(&compose.root).args(["build", "--release", "--workspace", "--bin", "kaskade"]))?;
    }
    image(&compose.root)?;
    Ok(compose)
}

/// `docker compose` or `docker-compose`, with the cluster of docker/cluster.env.
struct Compose {
    program: Vec<&'static str>,
    root: PathBuf,
}

impl Compose {
    fn find() -> anyhow::Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let candidates = [vec!["docker", "compose"], vec!["docker-compose"]];
        let program = candidates.into_iter().find(|program| {
            let mut asked = program.iter();
            asked
                .next()
                .is_some_and(|name| done(Command::new(name).args(asked).arg("version")))
        });
        let program =
            program.context("there is a Docker engine and neither `docker compose` nor `docker-compose`")?;
        Ok(Self { program, root })
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut words = self.program.iter();
        let mut command = Command::new(words.next().copied().unwrap_or("docker"));
        command.args(words).current_dir(&self.root);
        command.args(["--project-name", PROJECT, "-f", "docker/compose.yaml"]);
        command.args(["--env-file", "docker/cluster.env"]);
        for (variable, address) in [("NATS_PORT", NATS), ("KASKADE_HTTP_PORT", HTTP)] {
            command.env(variable, address.rsplit(':').next().unwrap_or_default());
        }
        command.env("KASKADE_BIND", "127.0.0.1");
        command.args(arguments).stdin(Stdio::null());
        for variable in ["COMPOSE_HTTP_TIMEOUT", "DOCKER_CLIENT_TIMEOUT"] {
            command.env(variable, ENGINE_TIMEOUT_S);
        }
        command
    }

    fn call(&self, arguments: &[&str]) -> anyhow::Result<()> {
        let output = self.output(arguments)?;
        ensure!(
            output.status.success(),
            "`compose {}` failed: {}",
            arguments.join(" "),
            text(&output.stderr)
        );
        Ok(())
    }

    /// Starts services that wait for one another's health. Until the engine has set up the health check of a container that it has just
    /// started, it calls the container unhealthy, and Compose then gives up what waits for it; another `up` continues from there.
    fn up(&self, arguments: &[&str]) -> anyhow::Result<()> {
        let words = [&["up", "--detach"], arguments].concat();
        for _ in 1..UPS {
            let output = self.output(&words)?;
            if output.status.success() {
                return Ok(());
            }
            let said = text(&output.stderr);
            ensure!(
                said.contains("is unhealthy"),
                "`compose {}` failed: {said}",
                words.join(" ")
            );
            println!("a container counts as unhealthy; `compose up` again");
        }
        self.call(&words)
    }

    fn output(&self, arguments: &[&str]) -> anyhow::Result<Output> {
        Ok(self.command(arguments).output()?)
    }

    /// Waits until a service is ready.
    fn ready(&self, service: &str) -> anyhow::Result<()> {
        let begun = Instant::now();
        while !self
            .output(&["exec", "-T", service, "kaskade", "probe", "ready"])?
            .status
            .success()
        {
            ensure!(
                begun.elapsed() < READY_TIMEOUT,
                "`{service}` is not ready after {READY_TIMEOUT:?}"
            );
            std::thread::sleep(Duration::from_millis(500));
        }
        Ok(())
    }

    /// Replaces a service's container, and waits until the new one is ready.
    fn replace(&self, service: &str) -> anyhow::Result<()> {
        self.call(&["up", "--detach", "--no-deps", "--force-recreate", service])?;
        self.ready(service)
    }
}

/// Pulls the base images, or builds stand-ins if they cannot be pulled.
fn images(root: &Path) -> anyhow::Result<()> {
    let here = |image: &&str| {
        done(Command::new("docker").args(["image", "inspect", image]))
            || done(Command::new("docker").args(["pull", "--quiet", image]))
    };
    if BASES.iter().all(here) {
        println!("base images: {}", BASES.join(", "));
        return Ok(());
    }
    println!("base images cannot be pulled: building stand-ins (docker/stand-ins.sh)");
    succeeds(Command::new("docker/stand-ins.sh").current_dir(root))
}

/// Builds the image of Kaskade from target/release/kaskade.
fn image(root: &Path) -> anyhow::Result<()> {
    succeeds(
        Command::new("docker")
            .args([
                "build",
                "-q",
                "-f",
                "docker/Dockerfile",
                "--target",
                "prebuilt",
                "-t",
                "kaskade",
                ".",
            ])
            .current_dir(root),
    )
}

fn steps(compose: &Compose, args: &Args) -> anyhow::Result<()> {
    let begun = Instant::now();
    // Two workers at first; two more join under load.
    compose.up(&["--scale", "worker-c=0", "--scale", "worker-d=0"])?;
    for service in [
        "planner",
        "worker-a",
        "worker-b",
        "ingress",
        "ingress-2",
        "gateway",
    ] {
        compose.ready(service)?;
    }
    println!("up and ready after {:.0} s", begun.elapsed().as_secs_f64());
    from_outside(compose)?;
    over_http()?;
    let mut load = bench(compose, args)?;
    let restarted = restart(compose);
    let output = load.wait_with_output_of()?;
    restarted?;
    judge(&output)
}

/// Sends requests from this machine, with the client's key.
fn from_outside(compose: &Compose) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let key = folder.path().join("client.nk");
    let arguments = [
        "run",
        "--rm",
        "--no-deps",
        "-T",
        "--entrypoint",
        "cat",
        "client",
        "/auth/nkey",
    ];
    std::fs::write(&key, compose.output(&arguments)?.stdout)?;
    for command in [["infer", "--index"], ["submit", "--index"]] {
        let mut asked = Command::new(std::env::current_exe()?.with_file_name("kaskade"));
        asked.args(command).args([
            "7",
            "--app",
            "examples/compose/app.toml",
            "--nats",
            &format!("nats://{NATS}"),
            "--nkey",
        ]);
        asked.arg(&key).current_dir(&compose.root);
        if command.first() == Some(&"submit") {
            asked.args(["--wait", "10s"]);
        }
        let answer = asked.output()?;
        ensure!(
            answer.status.success(),
            "{} from outside: {}",
            command.join(" "),
            text(&answer.stderr)
        );
        let said = text(&answer.stdout);
        println!(
            "{} from outside: {}",
            command.join(" "),
            said.lines().next().unwrap_or_default()
        );
    }
    Ok(())
}

/// Asks the gateway from this machine whether it serves the app.
fn over_http() -> anyhow::Result<()> {
    let path = "/v2/models/digits/ready";
    let answer = kaskade_testkit::http_get(HTTP, path).context("the gateway refuses connections")?;
    ensure!(
        answer.0.starts_with("HTTP/1.1 200"),
        "{path} from outside: {} {}",
        answer.0,
        answer.1
    );
    println!("over HTTP from outside: {path} answers 200");
    Ok(())
}

struct Bench(Child);

impl Bench {
    fn wait_with_output_of(&mut self) -> anyhow::Result<Vec<u8>> {
        let mut out = Vec::new();
        let pipe = self.0.stdout.as_mut().context("bench has no output")?;
        std::io::Read::read_to_end(pipe, &mut out)?;
        self.0.wait()?;
        Ok(out)
    }
}

fn bench(compose: &Compose, args: &Args) -> anyhow::Result<Bench> {
    let (rate, duration) = (
        format!("--rate={}", args.rate),
        format!("--duration={}", args.duration),
    );
    let mut command = compose.command(&[
        "run",
        "--rm",
        "-T",
        "client",
        "bench",
        "--app=/examples/compose/app.toml",
        &rate,
        &duration,
        // Longer than any restart; a later reply counts as lost.
        "--budget=5s",
        "--json",
    ]);
    Ok(Bench(
        command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?,
    ))
}

/// Adds two workers, then replaces every service and every server, one after the other.
fn restart(compose: &Compose) -> anyhow::Result<()> {
    let begun = Instant::now();
    compose.call(&["up", "--detach", "--no-deps", "worker-c", "worker-d"])?;
    for service in ["worker-c", "worker-d"] {
        compose.ready(service)?;
    }
    println!("two more workers after {:.0} s", begun.elapsed().as_secs_f64());
    let services = [
        "worker-a",
        "worker-b",
        "worker-c",
        "worker-d",
        "planner",
        "planner-2",
        "ingress",
        "ingress-2",
        "gateway",
    ];
    for service in services {
        compose.replace(service)?;
    }
    println!(
        "all services replaced after {:.0} s",
        begun.elapsed().as_secs_f64()
    );
    for server in ["nats-2", "nats-3", "nats"] {
        compose.call(&["up", "--detach", "--no-deps", "--force-recreate", server])?;
        // The image has no health check; two of three servers must be up when the next one is replaced.
        std::thread::sleep(SETTLING);
        for service in services {
            compose.ready(service)?;
        }
    }
    println!(
        "all servers replaced after {:.0} s",
        begun.elapsed().as_secs_f64()
    );
    Ok(())
}

fn judge(output: &[u8]) -> anyhow::Result<()> {
    let report: serde_json::Value =
        serde_json::from_slice(output).with_context(|| format!("bench printed {:?}", text(output)))?;
    let number = |name: &str| report.get(name).and_then(serde_json::Value::as_u64);
    let (sent, answered) = (number("sent"), number("answered"));
    println!("under load: {report}");
    match (sent, answered) {
        (Some(sent), Some(answered)) if sent == answered && sent > 0 => {
            println!("{sent} requests sent, all answered");
            Ok(())
        }
        _ => bail!("not every request was answered"),
    }
}

fn cargo(root: &Path) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root);
    cargo
}

fn done(command: &mut Command) -> bool {
    let quiet = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

fn succeeds(command: &mut Command) -> anyhow::Result<()> {
    let status = command.stdin(Stdio::null()).status()?;
    ensure!(status.success(), "{command:?} failed");
    Ok(())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_touches_no_other_deployment() {
        let compose = Compose {
            program: vec!["docker", "compose"],
            root: PathBuf::from("."),
        };
        let command = compose.command(&["down", "--volumes"]);
        let arguments: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
        assert_eq!(arguments[..3], ["compose", "--project-name", PROJECT]);
        assert!(arguments.ends_with(&["down".into(), "--volumes".into()]));
        let set: Vec<_> = command.get_envs().collect();
        for (variable, port) in [("NATS_PORT", "14222"), ("KASKADE_HTTP_PORT", "18080")] {
            assert!(set.contains(&(variable.as_ref(), Some(port.as_ref()))));
        }
    }
}
