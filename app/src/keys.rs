//! Access keys: seeds in files, and the part of a nats-server's configuration with the public keys.
//!
//! A seed is a secret. It is generated here, stored in a file that only its owner can read, and never printed, logged
//! or included in an error.

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

use crate::report::{WriteError, temporary_path, write_file};

/// Name of the file with a user's seed, in the user's folder.
pub const SEED: &str = "nkey";

/// Error of reading, generating or writing keys.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The name of an actor or a stage is invalid in a subject.
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
    /// The system has no source of random numbers.
    #[error("the system gives no randomness to make a seed of")]
    NoRandomness,
    /// A file does not contain a seed. The error never quotes its content.
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

/// A user of the nats-server.
pub struct User {
    /// Name of the user, and of its folder.
    pub name: String,
    /// Role of the user, which determines the permissions.
    pub role: Role,
    /// Public keys, newest first; there are two while a seed is being replaced.
    pub keys: Vec<String>,
}

/// An account of the nats-server: users isolated from those of other accounts.
pub struct Account {
    /// Name of the account.
    pub name: String,
    /// Users of the account.
    pub users: Vec<User>,
}

/// Certificate files, as paths on the server's machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Tls {
    /// Certificate of the server.
    pub cert: PathBuf,
    /// Key of that certificate.
    pub key: PathBuf,
    /// Certificate authority with which the servers of a cluster verify each other.
    pub ca: Option<PathBuf>,
}

/// Returns the users that every app has, with their roles.
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

/// Returns the accounts, users, permissions and TLS settings as nats-server configuration. Contains no secret.
///
/// # Errors
/// [`KeyError::Subject`] if the name of an actor or a stage is invalid in a subject.
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

/// Returns a configuration line that names a file.
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

/// Quotes a text for the server's configuration.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Returns the public keys of a user whose seeds are in `folder`: the current one, and the previous one if it still
/// exists. Generates a seed if there is none; `rotate` generates a new one and keeps the current one as the previous.
///
/// # Errors
/// [`KeyError`] if a file cannot be read or written, or contains something else.
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

/// Writes the part of a server's configuration that makes it a member of a cluster. The servers share a secret, stored
/// in `folder` and generated if missing; only servers that know it can join. With a certificate authority in `tls`,
/// routes are encrypted and the servers verify each other's certificates.
///
/// # Errors
/// [`KeyError`] if a file cannot be read or written.
pub fn cluster(folder: &Path, routes: &[String], tls: Option<&Tls>) -> Result<(), KeyError> {
    std::fs::create_dir_all(folder).map_err(KeyError::file(folder, "made"))?;
    // Any long random text suffices; seeds can be generated and stored already.
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

/// Returns whether a file contains a secret. An empty file does not: on a full disk a file may be created without its
/// content.
fn holds_secret(path: &Path) -> Result<bool, KeyError> {
    Ok(path.is_file() && !read(path)?.is_empty())
}

/// Returns the secret in a file; generates it if there is none.
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
    // Do not return the text or the library's error, which may quote it.
    match KeyPair::from_seed(seed) {
        Ok(user) if matches!(user.key_pair_type(), KeyPairType::User) => Ok(user.public_key()),
        _ => Err(KeyError::NotASeed {
            path: path.to_owned(),
        }),
    }
}

/// Writes a secret file that only its owner can read, atomically: a new temporary file, which no other process can have
/// replaced by a link, is renamed to `path`.
fn write_private(path: &Path, text: &str) -> Result<(), KeyError> {
    let temporary = temporary_path(path);
    // An interrupted process with the same id may have left it.
    let _ = std::fs::remove_file(&temporary);
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&temporary)
        .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))
        .and_then(|()| std::fs::rename(&temporary, path));
    written.map_err(|error| {
        let _ = std::fs::remove_file(&temporary);
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

    /// Regression: a full disk left an empty seed, with which every later run failed.
    #[test]
    fn an_empty_seed_is_as_if_absent() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("ingress");
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join(SEED), "\n").unwrap();
        let first = keys(&folder, false).unwrap();
        assert_eq!(mode(&folder.join(SEED)), 0o600);
        // The empty file is not kept as the previous seed either.
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
        // The temporary file can be written, but cannot replace a folder.
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
        // Servers without a certificate authority could not verify each other.
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
