//! The commands of README.md and the tutorial work as written, and print what the pages show.
//!
//! `docs/contributing/index.md` says how pages mark their blocks. The pages use port 4222; each test has a port of its own.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use kaskade_testkit::{Process, ROOT, TIMEOUT, alone, built, free_port, nats_server_binary, wait_until};
use tempfile::TempDir;

/// How long one block may run; the machine may be busy.
const MAX_BLOCK_TIME: Duration = Duration::from_mins(10);

#[test]
fn the_readme_works() {
    execute("README.md");
}

#[test]
fn the_tutorial_of_the_first_cascade_works() {
    execute("docs/tutorial/first-cascade.md");
}

#[test]
fn the_tutorial_of_own_models_works() {
    execute("docs/tutorial/your-own-models.md");
}

/// A fenced block of a page that is executed, and the output that the page shows for it.
#[derive(Debug, PartialEq)]
struct Block {
    script: String,
    background: bool,
    shown: Option<String>,
}

/// The executed blocks of a page, in order. The `text` block that follows one shows its output.
fn blocks(page: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut executed = false;
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let Some(info) = line.strip_prefix("```") else {
            continue;
        };
        let body: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        let body = body.join("\n");
        match info {
            "sh test" | "sh test background" => blocks.push(Block {
                script: body,
                background: info.ends_with("background"),
                shown: None,
            }),
            "text" if executed => blocks.last_mut().unwrap().shown = Some(body),
            other => assert!(!other.starts_with("sh test"), "unknown fence: {other}"),
        }
        executed = info.starts_with("sh test");
    }
    blocks
}

/// The words of a shown output that every run prints: of four letters or more, no name of a variant, no figure, no unit.
fn stable_words(shown: &str) -> Vec<&str> {
    shown
        .split_whitespace()
        .map(|word| word.trim_matches(|c: char| !c.is_alphanumeric()))
        .filter(|word| word.len() >= 4 && word.chars().all(char::is_alphabetic))
        .collect()
}

/// The words of `shown` that `output` lacks.
fn missing<'a>(shown: &'a str, output: &str) -> Vec<&'a str> {
    let mut words = stable_words(shown);
    words.retain(|word| !output.contains(word));
    words
}

/// A command of a page, told the port of the test in the place of the default one.
fn with_port(line: &str, port: u16) -> String {
    let line = line.replace("4222", &port.to_string());
    let told = |flag: &str| line.contains(flag);
    if let Some(rest) = line.strip_prefix("kaskade serve ") {
        if !told("--nats ") && !told("--listen ") {
            return format!("kaskade serve --listen 127.0.0.1:{port} {rest}");
        }
    } else if let Some((client, rest)) = line.split_once(' ').and_then(|(_, rest)| rest.split_once(' '))
        && line.starts_with("kaskade ")
        && ["infer", "submit", "result", "bench", "top"].contains(&client)
        && !told("--nats ")
        && !told("--app ")
    {
        return format!("kaskade {client} --nats nats://127.0.0.1:{port} {rest}");
    }
    line
}

/// A page that is being executed.
struct Run {
    page: &'static str,
    /// Where the blocks run: a fresh directory with a link to `examples`.
    folder: TempDir,
    /// Outputs, scripts, and the programs on the `PATH`.
    aside: TempDir,
    /// The background blocks, in the order of their start, and where they print.
    background: Vec<(Process, PathBuf)>,
}

impl Run {
    /// A process of the page: standard output and error go to `output`.
    fn start(&self, command: &mut Command, output: &Path) -> Process {
        let file = File::create(output).unwrap();
        let path = std::env::var("PATH").unwrap_or_default();
        let home = std::env::var_os("HOME").unwrap_or_default();
        command
            .current_dir(self.folder.path())
            .env_clear()
            .env(
                "PATH",
                format!("{}:{path}", self.aside.path().join("bin").display()),
            )
            .env("HOME", home)
            .stdout(file.try_clone().unwrap())
            .stderr(file);
        Process::start(command)
    }

    fn start_background(&mut self, block: &Block) {
        let output = self
            .aside
            .path()
            .join(format!("background-{}", self.background.len()));
        // The shell becomes the program, which then gets the signal.
        let script = format!("exec {}", block.script);
        let mut process = self.start(
            Command::new("bash")
                .args(["-eu", "-c", &script])
                .stdin(Stdio::null()),
            &output,
        );
        let shown = block.shown.as_deref().unwrap_or_default();
        let page = self.page;
        wait_until(&format!("{page}: `{}` serves", block.script), TIMEOUT, || {
            let printed = fs::read_to_string(&output).unwrap();
            assert!(
                process.exited().is_none(),
                "{page}: `{}` ended: {printed}",
                block.script
            );
            let serves = printed.contains("serving") || printed.contains("Server is ready");
            serves && missing(shown, &printed).is_empty()
        });
        self.background.push((process, output));
    }

    fn stop_background(&mut self) {
        while let Some((mut process, output)) = self.background.pop() {
            process.terminate();
            wait_until("a background block ends", TIMEOUT, || process.exited().is_some());
            let printed = fs::read_to_string(output).unwrap();
            let succeeded = process.exited().is_some_and(|status| status.success());
            assert!(
                succeeded || printed.contains("Server is ready"),
                "{}: {printed}",
                self.page
            );
        }
    }
}

/// Executes a page in one shell.
fn execute(page: &'static str) {
    let _alone = alone();
    let text = fs::read_to_string(Path::new(ROOT).join(page)).unwrap();
    let mut run = Run {
        page,
        folder: TempDir::new().unwrap(),
        aside: TempDir::new().unwrap(),
        background: Vec::new(),
    };
    symlink(
        Path::new(ROOT).join("examples"),
        run.folder.path().join("examples"),
    )
    .unwrap();
    let programs = run.aside.path().join("bin");
    fs::create_dir(&programs).unwrap();
    symlink(built("kaskade"), programs.join("kaskade")).unwrap();
    let nats_server = nats_server_binary();
    if nats_server.is_absolute() {
        symlink(nats_server, programs.join("nats-server")).unwrap();
    }

    let printed = run.aside.path().join("printed");
    let mut shell = run.start(Command::new("bash").arg("-eu").stdin(Stdio::piped()), &printed);
    let mut stdin = shell.child().stdin.take().unwrap();
    let port = free_port();
    let blocks = blocks(&text);
    assert!(blocks.len() > 2, "{page} has {} executed blocks", blocks.len());
    for (number, mut block) in blocks.into_iter().enumerate() {
        let lines: Vec<_> = block.script.lines().map(|line| with_port(line, port)).collect();
        block.script = lines.join("\n");
        if block.background {
            run.start_background(&block);
            continue;
        }
        let before = fs::metadata(&printed).unwrap().len();
        let script = run.aside.path().join(format!("block-{number}"));
        let done = run.aside.path().join(format!("done-{number}"));
        fs::write(&script, &block.script).unwrap();
        writeln!(
            stdin,
            "source '{}' </dev/null\n: > '{}'",
            script.display(),
            done.display()
        )
        .unwrap();
        let start = Instant::now();
        wait_until("the block ends", MAX_BLOCK_TIME, || {
            done.exists() || shell.exited().is_some()
        });
        let output = fs::read(&printed).unwrap();
        let output = String::from_utf8_lossy(&output[usize::try_from(before).unwrap()..]);
        assert!(
            done.exists(),
            "{page}: this block failed:\n{}\n{output}",
            block.script
        );
        let shown = block.shown.as_deref().unwrap_or_default();
        let missing = missing(shown, &output);
        assert!(
            missing.is_empty(),
            "{page}: this block no longer prints {missing:?}:\n{}\n{output}",
            block.script
        );
        eprintln!("{page}: block {number} took {:?}", start.elapsed());
    }
    drop(stdin);
    run.stop_background();
}

#[test]
fn blocks_are_read_with_the_output_that_follows_them() {
    let page = "```sh\nno\n```\n```text\nno\n```\n```sh test\na\nb\n```\nthat prints\n```text\nc\n```\n```sh test background\nd\n```\n";
    let block = |script: &str, background, shown: Option<&str>| Block {
        script: script.to_owned(),
        background,
        shown: shown.map(str::to_owned),
    };
    assert_eq!(
        blocks(page),
        [block("a\nb", false, Some("c")), block("d", true, None)]
    );
}

#[test]
fn commands_are_told_the_port_of_the_test() {
    for (line, expected) in [
        (
            "kaskade serve --app a.toml",
            "kaskade serve --listen 127.0.0.1:7 --app a.toml",
        ),
        (
            "kaskade serve --nats nats://h:4222",
            "kaskade serve --nats nats://h:7",
        ),
        (
            "kaskade infer digits --text a",
            "kaskade infer --nats nats://127.0.0.1:7 digits --text a",
        ),
        (
            "kaskade infer --app a.toml --index 7",
            "kaskade infer --app a.toml --index 7",
        ),
        ("mkdir a", "mkdir a"),
    ] {
        assert_eq!(with_port(line, 7), expected);
    }
}

#[test]
fn figures_names_and_units_are_not_compared() {
    let shown = " small   1 096   87.53 %   18.0 µs\nanswered by digits-small, confidence 0.92";
    assert_eq!(stable_words(shown), ["small", "answered", "confidence"]);
    assert_eq!(missing(shown, "small: answered"), ["confidence"]);
}
