//! Who may connect: seeds in files, and the part of a nats-server's configuration that knows their public keys.
//!
//! A seed is a secret. It is made here, goes into a file that only its owner reads, and is never printed, logged or put into
//! an error.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use kaskade_actors::ops::permissions::{Permissions, Role, permissions};
use kaskade_actors::subjects::inbox_prefix;
use kaskade_actors::subjects::{App, SubjectError};
use nkeys::{KeyPair, KeyPairType};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::report::{WriteError, beside, write_file};

/// Name of the file with a user's seed, in the user's folder.
pub const SEED: &str = "nkey";

/// Keys cannot be read, made or written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The name of an actor or a stage cannot stand in a subject.
    #[error(transparent)]
    Subject(#[from] SubjectError),
    /// A file or folder cannot be used.
    #[error("{} cannot be {action}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// The failed operation: `read`, `made`, `renamed`.
        action: &'static str,
        /// Message of the operating system.
        source: io::Error,
    },
    /// A file cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The system gives no randomness.
    #[error("the system gives no randomness to make a seed of")]
    NoRandomness,
    /// A file does not hold a seed. The error never quotes its content.
    #[error("{} does not hold a user's seed; remove it to have one made", path.display())]
    NotASeed {
        /// The file.
        path: PathBuf,
    },
}

impl KeyError {
    fn file(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::File {
            path: path.to_owned(),
            action,
            source,
        }
    }
}

/// A user that may connect.
pub struct User {
    /// Name of the user, and of its folder.
    pub name: String,
    /// Its permissions.
    pub role: Role,
    /// Public keys, the newest first; a second one while a seed is being replaced.
    pub keys: Vec<String>,
}

/// Users that are isolated from other accounts.
pub struct Account {
    /// Name of the account.
    pub name: String,
    /// Who is in it.
    pub users: Vec<User>,
}

/// Certificates, as paths on the machine of the server.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Tls {
    /// The server's certificate.
    pub cert: PathBuf,
    /// The key of that certificate.
    pub key: PathBuf,
    /// The authority that signed the certificates of the servers of a cluster: each checks those of the others.
    pub ca: Option<PathBuf>,
}

/// The users that every app has.
pub fn roles() -> Vec<(String, Role)> {
    [
        ("client", Role::Client),
        ("ingress", Role::Ingress),
        ("worker", Role::Worker),
        ("planner", Role::Planner),
        ("observer", Role::Observer),
        ("gateway", Role::Gateway),
    ]
    .map(|(name, role)| (name.to_owned(), role))
    .to_vec()
}

/// The accounts, their users and permissions, and TLS, as a nats-server reads them. No secret is in it.
///
/// # Errors
/// When the name of an actor or a stage cannot stand in a subject.
pub fn configuration(app: &App, accounts: &[Account], tls: Option<&Tls>) -> Result<String, KeyError> {
    let mut lines = vec![
        format!(
            "# Who may connect, and what they may do in app `{app}`. Written by `kaskade auth init`, which keeps the seeds"
        ),
        "# that are there when it is run again. Only public keys stand here.".to_owned(),
        "accounts {".to_owned(),
    ];
    for account in accounts {
        lines.push(format!("  {} {{", quoted(&account.name)));
        lines.push("    jetstream: enabled".to_owned());
        lines.push("    users: [".to_owned());
        for user in &account.users {
            for key in &user.keys {
                let allowed = permissions(app, &user.role, key)?;
                lines.push(format!("      {{ # {}", user.name));
                lines.push(format!("        nkey: {}", quoted(key)));
                lines.extend(rules(&allowed));
                lines.push("      }".to_owned());
            }
        }
        lines.push("    ]".to_owned());
        lines.push("  }".to_owned());
    }
    lines.push("}".to_owned());
    if let Some(Tls { cert, key, .. }) = tls {
        lines.push("tls {".to_owned());
        lines.extend([("cert_file", cert), ("key_file", key)].map(file_line));
        lines.push("}".to_owned());
    }
    Ok(lines.join("\n") + "\n")
}

/// A line that names a file.
fn file_line((name, path): (&str, &PathBuf)) -> String {
    format!("  {name}: {}", quoted(&path.display().to_string()))
}

fn rules(allowed: &Permissions) -> Vec<String> {
    let list = |name: &str, subjects: &[String]| {
        let subjects: Vec<String> = subjects
            .iter()
            .map(|subject| format!("            {}", quoted(subject)))
            .collect();
        format!(
            "          {name}: {{ allow: [\n{}\n          ] }}",
            subjects.join("\n")
        )
    };
    vec![
        "        permissions: {".to_owned(),
        list("publish", &allowed.publish),
        list("subscribe", &allowed.subscribe),
        "        }".to_owned(),
    ]
}

/// A text as the server's configuration wants it.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// The public keys of a user's seeds in its own `folder`: the newest, and the one before it where it is still there. Without a
/// seed, one is made; to `rotate` is to make another and to keep the one that was there as the one before.
///
/// # Errors
/// When a file cannot be read or written, or holds something else.
pub fn keys(folder: &Path, rotate: bool) -> Result<Vec<String>, KeyError> {
    std::fs::create_dir_all(folder).map_err(KeyError::file(folder, "made"))?;
    let (seed, before) = (folder.join(SEED), folder.join("nkey.previous"));
    if rotate && holds_secret(&seed)? {
        std::fs::rename(&seed, &before).map_err(KeyError::file(&seed, "renamed"))?;
    }
    let newest = public_key(&secret(&seed)?, &seed)?;
    write_file(&folder.join("inbox"), &format!("{}\n", inbox_prefix(&newest)))?;
    let mut keys = vec![newest];
    if holds_secret(&before)? {
        keys.push(public_key(&read(&before)?, &before)?);
    }
    Ok(keys)
}

/// The part of a server's configuration that makes it one of a cluster. Only who knows the secret that the servers share may
/// join it; it is kept in `folder`, made if it is not there. With the authority of `tls`, routes are encrypted, and servers check each
/// other's certificates.
///
/// # Errors
/// When a file cannot be read or written.
pub fn cluster(folder: &Path, routes: &[String], tls: Option<&Tls>) -> Result<(), KeyError> {
    std::fs::create_dir_all(folder).map_err(KeyError::file(folder, "made"))?;
    // Any long random text is sufficient; a seed is one, and its generation and storage exist already.
    let password = secret(&folder.join("routes"))?;
    let routes: Vec<String> = routes
        .iter()
        .map(|host| format!("    \"nats://route:{password}@{host}:6222\""))
        .collect();
    let tls = tls.and_then(|Tls { cert, key, ca }| {
        let files = [("cert_file", cert), ("key_file", key), ("ca_file", ca.as_ref()?)];
        let lines = files.map(file_line).map(|line| format!("  {line}\n")).concat();
        Some(format!("  tls {{\n{lines}    verify: true\n  }}\n"))
    });
    let tls = tls.unwrap_or_default();
    let text = format!(
        "cluster {{\n  name: kaskade\n  listen: \"0.0.0.0:6222\"\n  authorization {{ user: route, password: \"{password}\" }}\n  \
         {tls}  routes: [\n{}\n  ]\n}}\n",
        routes.join("\n")
    );
    write_private(&folder.join("cluster.conf"), &text)
}

/// Returns whether a file holds a secret. An empty one does not: a full disk takes the name of a file, but no content.
fn holds_secret(path: &Path) -> Result<bool, KeyError> {
    Ok(path.is_file() && !read(path)?.is_empty())
}

/// The secret in a file, which is made if it is not there.
fn secret(path: &Path) -> Result<String, KeyError> {
    if holds_secret(path)? {
        return read(path);
    }
    let seed = KeyPair::new_user().seed().map_err(|_| KeyError::NoRandomness)?;
    write_private(path, &format!("{seed}\n"))?;
    Ok(seed)
}

fn read(path: &Path) -> Result<String, KeyError> {
    let text = std::fs::read_to_string(path).map_err(KeyError::file(path, "read"))?;
    Ok(text.trim().to_owned())
}

fn public_key(seed: &str, path: &Path) -> Result<String, KeyError> {
    // Neither the text nor the library's complaint about it, which may quote it.
    match KeyPair::from_seed(seed) {
        Ok(user) if matches!(user.key_pair_type(), KeyPairType::User) => Ok(user.public_key()),
        _ => Err(KeyError::NotASeed {
            path: path.to_owned(),
        }),
    }
}

/// Writes a secret file that only its owner can read, whole or not at all. The file is written beside its place under a name that does not
/// exist, so that no process has prepared a link, and replaces what is there.
fn write_private(path: &Path, text: &str) -> Result<(), KeyError> {
    let beside = beside(path);
    // An interrupted run of a process with the same number left it.
    let _ = std::fs::remove_file(&beside);
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&beside)
        .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))
        .and_then(|()| std::fs::rename(&beside, path));
    written.map_err(|error| {
        let _ = std::fs::remove_file(&beside);
        KeyError::file(path, "written")(error)
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn account(name: &str) -> Account {
        let users = roles().into_iter().map(|(name, role)| User {
            keys: vec![format!("U{}", name.to_uppercase())],
            name,
            role,
        });
        Account {
            name: name.to_owned(),
            users: users.collect(),
        }
    }

    #[test]
    fn tenants_are_accounts_and_tls_is_a_section() {
        let app = App::new("digits").unwrap();
        let tls = Tls {
            cert: "/certs/a b.pem".into(),
            key: "/certs/key.pem".into(),
            ca: None,
        };
        let written = configuration(&app, &[account("blue"), account("green")], Some(&tls)).unwrap();
        for line in [
            "  \"blue\" {",
            "  \"green\" {",
            "        nkey: \"UPLANNER\"",
            "            \"$KV.kaskade-digits.>\"",
            "            \"_INBOX.UCLIENT.>\"",
            "  cert_file: \"/certs/a b.pem\"",
        ] {
            assert!(
                written.lines().any(|found| found == line),
                "{line} is not in\n{written}"
            );
        }
        assert_eq!(
            written.matches("\"$KV.kaskade-digits.>\"").count(),
            2,
            "one planner each"
        );
        assert!(
            !configuration(&app, &[account("blue")], None)
                .unwrap()
                .contains("tls")
        );
    }

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn seeds_are_kept_private_and_turned_over() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("worker");
        let first = keys(&folder, false).unwrap();
        assert_eq!(mode(&folder.join(SEED)), 0o600);
        assert_eq!(keys(&folder, false).unwrap(), first, "run again, nothing changes");
        let turned = keys(&folder, true).unwrap();
        assert_ne!(turned[0], first[0]);
        assert_eq!(turned[1], first[0], "the old seed is good until it is removed");
        std::fs::remove_file(folder.join("nkey.previous")).unwrap();
        assert_eq!(keys(&folder, false).unwrap(), turned[..1]);
        let inbox = std::fs::read_to_string(folder.join("inbox")).unwrap();
        assert_eq!(inbox.trim(), format!("_INBOX.{}", turned[0]));
    }

    /// A full disk left an empty seed, with which every later run failed.
    #[test]
    fn an_empty_seed_is_as_if_absent() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("ingress");
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join(SEED), "\n").unwrap();
        let first = keys(&folder, false).unwrap();
        assert_eq!(mode(&folder.join(SEED)), 0o600);
        // It is not the seed before the new one either.
        std::fs::write(folder.join(SEED), "").unwrap();
        let turned = keys(&folder, true).unwrap();
        assert_eq!((turned.len(), turned == first), (1, false));
        std::fs::write(folder.join("nkey.previous"), "").unwrap();
        assert_eq!(keys(&folder, false).unwrap(), turned);
    }

    #[test]
    fn a_secret_that_cannot_be_written_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let taken = folder.path().join("routes");
        std::fs::create_dir(&taken).unwrap();
        // The file beside it can be written, and does not replace a folder.
        assert!(secret(&taken).is_err());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn servers_of_a_cluster_share_a_secret() {
        let folder = tempfile::tempdir().unwrap();
        let hosts = ["a".to_owned(), "b".to_owned()];
        cluster(folder.path(), &hosts, None).unwrap();
        let path = folder.path().join("cluster.conf");
        assert_eq!(mode(&path), 0o600);
        let written = std::fs::read_to_string(&path).unwrap();
        let secret = std::fs::read_to_string(folder.path().join("routes")).unwrap();
        assert_eq!(written.matches(secret.trim()).count(), 3, "{written}");
        cluster(folder.path(), &hosts, None).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), written);
        assert!(!written.contains("tls"));
    }

    #[test]
    fn routes_are_encrypted_with_an_authority() {
        let folder = tempfile::tempdir().unwrap();
        let tls = |ca: Option<&str>| Tls {
            cert: "/certs/cert.pem".into(),
            key: "/certs/key.pem".into(),
            ca: ca.map(Into::into),
        };
        let with = |tls: &Tls| {
            cluster(folder.path(), &["a".to_owned()], Some(tls)).unwrap();
            std::fs::read_to_string(folder.path().join("cluster.conf")).unwrap()
        };
        let written = with(&tls(Some("/certs/ca.pem")));
        let section = "  tls {\n    cert_file: \"/certs/cert.pem\"\n    key_file: \"/certs/key.pem\"\n    ca_file: \"/certs/ca.pem\"\n    \
                       verify: true\n  }\n  routes: [\n";
        assert!(written.contains(section), "{written}");
        // A server whose peers it cannot check would not be one of a cluster.
        assert!(!with(&tls(None)).contains("tls"));
        let app = App::new("digits").unwrap();
        let for_clients = configuration(&app, &[account("a")], Some(&tls(Some("/certs/ca.pem")))).unwrap();
        assert!(!for_clients.contains("ca_file"), "{for_clients}");
    }

    #[test]
    fn an_invalid_seed_is_refused_and_not_printed() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(SEED), "hush").unwrap();
        let error = crate::report::in_one_line(&keys(folder.path(), false).unwrap_err());
        assert!(error.contains("nkey") && !error.contains("hush"), "{error}");
    }
}
