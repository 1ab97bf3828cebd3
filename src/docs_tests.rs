//! Every `kaskade ...` command of the documentation is one that the program accepts.

use std::path::{Path, PathBuf};

use clap::CommandFactory as _;
use clap::error::ErrorKind;

use crate::Cli;

/// Stands for the value of a shell variable: a valid name, path and number.
const VALUE: &str = "1";

#[test]
fn the_program_accepts_the_commands_of_the_documentation() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut pages = vec![
        root.join("README.md"),
        root.join("CONTRIBUTING.md"),
        root.join("SECURITY.md"),
    ];
    for folder in ["docs", "examples", "docker"] {
        files(&root.join(folder), &mut pages);
    }
    let mut checked = 0;
    let mut wrong = Vec::new();
    for page in pages {
        let text = std::fs::read_to_string(&page).unwrap();
        let blocks = match page.extension().and_then(|extension| extension.to_str()) {
            Some("md") => blocks(&text),
            _ => comments(&text),
        };
        for words in blocks.iter().flat_map(|block| commands(block)) {
            let Some(arguments) = arguments(&words) else {
                continue;
            };
            checked += 1;
            let line = std::iter::once("kaskade").chain(arguments.iter().map(String::as_str));
            if let Err(error) = Cli::command().try_get_matches_from(line)
                && !matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion)
            {
                let page = page.strip_prefix(root).unwrap().display();
                wrong.push(format!("{page}: kaskade {}\n{error}", arguments.join(" ")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(checked > 50, "only {checked} commands found");
}

/// The Markdown and TOML files below a folder.
fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else if path
            .extension()
            .is_some_and(|extension| extension == "md" || extension == "toml")
        {
            found.push(path);
        }
    }
}

/// The commands in the comments of a TOML file: `#     kaskade ...`.
fn comments(text: &str) -> Vec<String> {
    text.lines()
        .filter_map(|line| line.strip_prefix('#'))
        .map(str::trim)
        .filter(|line| line.starts_with("kaskade "))
        .map(str::to_owned)
        .collect()
}

/// The blocks of a page that are fenced as `sh`, without the bodies of here-documents.
fn blocks(page: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let Some(info) = line.trim_start().strip_prefix("```") else {
            continue;
        };
        let shell = info.split_whitespace().next() == Some("sh");
        let mut block = String::new();
        while let Some(line) = lines.next().filter(|line| !line.trim_start().starts_with("```")) {
            block.push_str(line);
            block.push('\n');
            if let Some((_, delimiter)) = line.split_once("<<") {
                let delimiter = delimiter.trim_matches('\'');
                for line in lines.by_ref() {
                    if line == delimiter {
                        break;
                    }
                }
            }
        }
        if shell {
            blocks.push(block);
        }
    }
    blocks
}

/// Splits a shell script into commands and these into words: quotes, comments, continued lines, operators and redirections
/// as a shell takes them, [`VALUE`] for each variable and substituted command.
fn commands(script: &str) -> Vec<Vec<String>> {
    let mut splitter = Splitter::default();
    let mut rest = script.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\\' => match rest.next() {
                Some('\n') | None => {}
                Some(escaped) => splitter.push(escaped),
            },
            '\'' => {
                splitter.begin();
                rest.by_ref()
                    .take_while(|&c| c != '\'')
                    .for_each(|c| splitter.push(c));
            }
            '"' => {
                splitter.begin();
                let mut dollar = false;
                while let Some(c) = rest.next().filter(|&c| c != '"') {
                    match c {
                        '\\' => rest.next().into_iter().for_each(|c| splitter.push(c)),
                        '$' => {
                            dollar = true;
                            substitute(&mut rest);
                        }
                        other => splitter.push(other),
                    }
                }
                if dollar {
                    splitter.extend(VALUE);
                }
            }
            '$' => {
                substitute(&mut rest);
                splitter.extend(VALUE);
            }
            '#' if splitter.word.is_none() => while rest.next_if(|&c| c != '\n').is_some() {},
            '>' | '<' => {
                splitter.redirect();
                while rest.next_if(|&c| matches!(c, '>' | '<' | '&')).is_some() {}
            }
            '\n' | ';' | '|' | '&' | '(' | ')' => splitter.end_command(),
            c if c.is_whitespace() => splitter.end_word(),
            other => splitter.push(other),
        }
    }
    splitter.end_command();
    splitter.commands
}

/// Consumes what follows a `$`: a name, or a group in brackets.
fn substitute(rest: &mut std::iter::Peekable<std::str::Chars<'_>>) {
    let (open, close) = match rest.peek() {
        Some('(') => ('(', ')'),
        Some('{') => ('{', '}'),
        _ => {
            while rest.next_if(|c| c.is_alphanumeric() || *c == '_').is_some() {}
            return;
        }
    };
    let mut depth = 0;
    for c in rest {
        depth += i32::from(c == open) - i32::from(c == close);
        if depth == 0 {
            return;
        }
    }
}

/// The state of [`commands`].
#[derive(Default)]
struct Splitter {
    commands: Vec<Vec<String>>,
    command: Vec<String>,
    word: Option<String>,
    /// The next word is the file of a redirection.
    file: bool,
}

impl Splitter {
    fn begin(&mut self) {
        self.word.get_or_insert_default();
    }

    fn push(&mut self, c: char) {
        self.word.get_or_insert_default().push(c);
    }

    fn extend(&mut self, text: &str) {
        self.word.get_or_insert_default().push_str(text);
    }

    fn redirect(&mut self) {
        // The `2` of `2>errors` is the descriptor.
        if !self
            .word
            .as_ref()
            .is_some_and(|word| word.chars().all(|c| c.is_ascii_digit()))
        {
            self.end_word();
        }
        self.word = None;
        self.file = true;
    }

    fn end_word(&mut self) {
        if let Some(word) = self.word.take()
            && !std::mem::take(&mut self.file)
        {
            self.command.push(word);
        }
    }

    fn end_command(&mut self) {
        self.end_word();
        self.file = false;
        if !self.command.is_empty() {
            self.commands.push(std::mem::take(&mut self.command));
        }
    }
}

/// The arguments of `kaskade` in a command: by its name, through cargo, or in a container.
fn arguments(words: &[String]) -> Option<Vec<String>> {
    let prefix = |word: &&String| {
        matches!(
            word.as_str(),
            "exec" | "time" | "until" | "while" | "if" | "do" | "then" | "{"
        ) || word.contains('=')
    };
    let skipped = words.iter().take_while(prefix).count();
    let words: Vec<&str> = words.iter().skip(skipped).map(String::as_str).collect();
    let after = |name: &str| {
        let at = words.iter().position(|&word| word == name)?;
        Some(words[at + 1..].iter().map(|&word| word.to_owned()).collect())
    };
    let has = |name: &str| words.contains(&name);
    match words[..] {
        ["kaskade", ..] => after("kaskade"),
        ["cargo", "run", ..] if !has("-p") && !has("--example") => after("--"),
        ["compose", ..] | ["docker", "compose", ..] if has("exec") => after("kaskade"),
        ["compose", ..] | ["docker", "compose", ..] if has("run") && !has("--entrypoint") => after("client"),
        _ => None,
    }
}

#[test]
fn scripts_are_split_as_a_shell_does() {
    let script = "A=1 kaskade infer digits --text \"a 'b' $C\" \\\n  --json 2>&1 | head # not this\nkaskade top '#x' >out && x & y#z";
    let split = commands(script);
    let expected: [&[&str]; 5] = [
        &["A=1", "kaskade", "infer", "digits", "--text", "a 'b' 1", "--json"],
        &["head"],
        &["kaskade", "top", "#x"],
        &["x"],
        &["y#z"],
    ];
    assert_eq!(split, expected);
    let infer = arguments(&split[0]).unwrap();
    assert_eq!(infer, ["infer", "digits", "--text", "a 'b' 1", "--json"]);
    assert_eq!(arguments(&split[1]), None);
    let one = |script: &str| arguments(&commands(script)[0]);
    assert_eq!(one("cargo run --release -- demo"), Some(vec!["demo".to_owned()]));
    assert_eq!(one("cargo run -p kaskade-papers -- loki"), None);
    assert_eq!(
        one("until compose exec -T $x kaskade probe ready"),
        Some(vec!["probe".to_owned(), "ready".to_owned()])
    );
    assert_eq!(
        one("compose run --rm client top digits"),
        Some(vec!["top".to_owned(), "digits".to_owned()])
    );
}

#[test]
fn here_documents_are_no_commands() {
    let page =
        "```sh test\ncat > a <<'EOF'\nkaskade nonsense\nEOF\nkaskade top a\n```\n```text\nkaskade b\n```\n";
    assert_eq!(blocks(page), ["cat > a <<'EOF'\nkaskade top a\n"]);
}
