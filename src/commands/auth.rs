//! `kaskade auth init`: users of the broker and their permissions.

use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context as _, ensure};
use kaskade_actors::ops::permissions::Role;
use kaskade_actors::subjects::App;
use kaskade_app::config::scalar::SubjectToken;
use kaskade_app::keys::{self, Account, Tls, User};
use kaskade_app::report::progress::say;
use kaskade_app::report::table::{Align, table};
use kaskade_app::report::write_file;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::failure::Usage;
use crate::output;

/// Creates keys and permissions for the broker.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Auth {
    /// Creates an nkey seed per role, and the nats-server configuration with the permissions of each role.
    ///
    /// A second run keeps existing seeds and the options of earlier runs, which `DIR/server/options.json` holds, and writes the
    /// configuration again. Options that it states are added.
    Init(Args),
}

/// Users, permissions and TLS of one app.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of the app.
    #[arg(value_name = "APP")]
    app: SubjectToken,
    /// Folder for seeds and configuration; it is created if it does not exist.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Account with its own users, in a folder of that name; may be repeated [default: one account with the app's name].
    #[arg(long = "tenant", value_name = "NAME")]
    tenants: Vec<SubjectToken>,
    /// User for a custom actor that serves only these stages; may be repeated.
    #[arg(long = "actor", value_name = "NAME=STAGE[,STAGE...]")]
    actors: Vec<Actor>,
    /// Replace the seed of this user; the old one stays valid until `USER/nkey.previous` is removed and the command runs again.
    #[arg(long, value_name = "USER")]
    rotate: Vec<SubjectToken>,
    /// Certificate of the server, as a path on its machine.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Key of that certificate.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Certificate authority that signed it: encrypts the routes of a cluster, whose servers check each other's certificates.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_ca: Option<PathBuf>,
    /// Also create a user `all`, for processes that run the whole app (`serve --role all`).
    #[arg(long)]
    all: bool,
    /// Host name of a server of a cluster; may be repeated. Those that are stated replace those of earlier runs.
    #[arg(long = "route", value_name = "HOST")]
    routes: Vec<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Folder with the configuration of the servers.
const SERVER: &str = "server";

/// File of the options of earlier runs, in the folder [`SERVER`].
const OPTIONS: &str = "options.json";

/// User of a custom actor.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Actor {
    name: SubjectToken,
    stages: Vec<SubjectToken>,
}

impl FromStr for Actor {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, stages) = text
            .split_once('=')
            .ok_or_else(|| format!("`{text}` has no stage; use the form NAME=STAGE, such as `mine=small`"))?;
        Ok(Self {
            name: name.parse()?,
            stages: stages.split(',').map(str::parse).collect::<Result<_, _>>()?,
        })
    }
}

/// Options that decide which users there are. They are kept in a file, so that a later run removes no user and no TLS because it does not
/// state them.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    app: SubjectToken,
    #[serde(default)]
    tenants: Vec<SubjectToken>,
    #[serde(default)]
    actors: Vec<Actor>,
    #[serde(default)]
    all: bool,
    #[serde(default)]
    tls: Option<Tls>,
    /// Hosts of the cluster's servers.
    #[serde(default)]
    routes: Vec<String>,
}

impl Options {
    /// Returns the options of the command line, together with those of earlier runs in `path`.
    ///
    /// # Errors
    /// When the folder is another app's, or tenants are stated for a folder that has users without a tenant.
    fn read(args: &Args, path: &Path) -> anyhow::Result<Self> {
        let tls = args.tls_cert.clone().zip(args.tls_key.clone());
        let tls = tls.map(|(cert, key)| Tls {
            cert,
            key,
            ca: args.tls_ca.clone(),
        });
        let Some(mut kept) = Self::kept(path)? else {
            return Ok(Self {
                app: args.app.clone(),
                tenants: args.tenants.clone(),
                actors: args.actors.clone(),
                all: args.all,
                tls,
                routes: args.routes.clone(),
            });
        };
        ensure!(
            kept.app == args.app,
            Usage::new(format!(
                "{} holds the users of app `{}`, not of `{}`; give each app a folder of its own",
                args.out.display(),
                kept.app,
                args.app
            ))
        );
        ensure!(
            args.tenants.is_empty() || !kept.tenants.is_empty(),
            Usage::new(format!(
                "{} holds users without a tenant, which `--tenant` would remove; give the tenants another folder",
                args.out.display()
            ))
        );
        for tenant in &args.tenants {
            if !kept.tenants.contains(tenant) {
                kept.tenants.push(tenant.clone());
            }
        }
        // The stages of an actor that is stated again are replaced.
        let is_stated = |actor: &Actor| args.actors.iter().any(|stated| stated.name == actor.name);
        kept.actors.retain(|actor| !is_stated(actor));
        kept.actors.extend(args.actors.iter().cloned());
        kept.all |= args.all;
        if let Some(mut stated) = tls {
            // A certificate that is renewed keeps its authority, and with it the encryption of the routes.
            stated.ca = stated.ca.or(kept.tls.and_then(|tls| tls.ca));
            kept.tls = Some(stated);
        }
        if kept.routes.is_empty() || !args.routes.is_empty() {
            kept.routes.clone_from(&args.routes);
        }
        Ok(kept)
    }

    /// Returns the options of earlier runs; `None` if there are none.
    fn kept(path: &Path) -> anyhow::Result<Option<Self>> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                return Err(error).with_context(|| format!("{} cannot be read", path.display()));
            }
        };
        let kept: Self = serde_json::from_str(&text)
            .with_context(|| format!("{} does not hold options of `auth init`", path.display()))?;
        Ok(Some(kept))
    }
}

/// Writes seeds and configuration.
pub(crate) fn run(Auth::Init(args): &Auth) -> anyhow::Result<()> {
    let app = App::new(args.app.as_str())?;
    let folder = args.out.join(SERVER);
    let kept = folder.join(OPTIONS);
    let options = Options::read(args, &kept)?;
    let users = users(&options)?;
    let names: Vec<&str> = users.iter().map(|(name, _)| name.as_str()).collect();
    for user in &args.rotate {
        ensure!(
            users.iter().any(|(name, _)| name == user.as_str()),
            Usage::new(format!(
                "there is no user `{user}` to rotate; there are `{}`",
                names.join("`, `")
            ))
        );
    }
    let accounts = if options.tenants.is_empty() {
        vec![account(args, args.app.as_str(), &args.out, &users)?]
    } else {
        let tenant =
            |name: &SubjectToken| account(args, name.as_str(), &args.out.join(name.as_str()), &users);
        ensure!(
            options.tenants.iter().all(|name| name.as_str() != SERVER),
            Usage::new(format!("`{SERVER}` is taken; give the tenant another name"))
        );
        options.tenants.iter().map(tenant).collect::<Result<_, _>>()?
    };
    let rules = keys::configuration(&app, &accounts, options.tls.as_ref())?;
    // First: a run that ends between both files must not be forgotten by the next one.
    write_file(&kept, &format!("{}\n", serde_json::to_string_pretty(&options)?))?;
    write_file(&folder.join("auth.conf"), &rules)?;
    let is_encrypted = |tls: &Tls| tls.ca.is_some();
    if !options.routes.is_empty() {
        keys::cluster(&folder, &options.routes, options.tls.as_ref())?;
        if !options.tls.as_ref().is_some_and(is_encrypted) {
            say("routes between the servers are not encrypted; `--tls-ca` encrypts them");
        }
    } else if args.tls_cert.is_some() && folder.join("cluster.conf").is_file() {
        // An earlier version did not keep the hosts.
        say(
            "state the hosts with `--route` again to write the certificate into the configuration of the cluster",
        );
    }
    let server = folder.join("nats-server.conf");
    write_file(&server, &whole(&folder)?)?;
    print(args, &options, &accounts)?;
    say(&format!(
        "start the broker by `nats-server --config {}`",
        server.display()
    ));
    Ok(())
}

/// Returns name and role of the users of an account.
fn users(options: &Options) -> anyhow::Result<Vec<(String, Role)>> {
    let mut users = keys::roles();
    if options.all {
        users.push(("all".to_owned(), Role::All));
    }
    for Actor { name, stages } in &options.actors {
        ensure!(
            name.as_str() != SERVER && users.iter().all(|(known, _)| known != name.as_str()),
            Usage::new(format!("`{name}` is taken; give the actor another name"))
        );
        let role = Role::Actor {
            name: name.to_string(),
            stages: stages.iter().map(SubjectToken::to_string).collect(),
        };
        users.push((name.to_string(), role));
    }
    Ok(users)
}

fn account(args: &Args, name: &str, folder: &Path, users: &[(String, Role)]) -> anyhow::Result<Account> {
    let user = |(name, role): &(String, Role)| {
        let rotate = args.rotate.iter().any(|rotated| rotated.as_str() == name);
        anyhow::Ok(User {
            keys: keys::keys(&folder.join(name), rotate)?,
            name: name.clone(),
            role: role.clone(),
        })
    };
    Ok(Account {
        name: name.to_owned(),
        users: users.iter().map(user).collect::<Result<_, _>>()?,
    })
}

/// Returns the configuration of a single server.
fn whole(out: &Path) -> anyhow::Result<String> {
    let store = std::path::absolute(out)?.join("jetstream");
    Ok(format!(
        "# A single nats-server for the app: nats-server --config {}\n# For one of a cluster, add its `server_name` and `include \"cluster.conf\"`.\nlisten: \"0.0.0.0:4222\"\njetstream {{\n  store_dir: {:?}\n}}\ninclude \"auth.conf\"\n",
        out.join("nats-server.conf").display(),
        store.display().to_string()
    ))
}

/// Prints the users with their public keys and the paths of their seeds, never the seeds.
fn print(args: &Args, options: &Options, accounts: &[Account]) -> anyhow::Result<()> {
    let folder = |account: &Account| {
        if options.tenants.is_empty() {
            args.out.clone()
        } else {
            args.out.join(&account.name)
        }
    };
    let rows = accounts.iter().flat_map(|account| {
        let folder = folder(account);
        account.users.iter().map(move |user| {
            let seed = folder.join(&user.name).join(keys::SEED).display().to_string();
            let (account, user, keys) = (account.name.clone(), user.name.clone(), user.keys.join(" and "));
            [account, user, seed, keys]
        })
    });
    if args.json {
        let users: Vec<_> = rows
            .map(|[account, user, seed, key]| json!({"account": account, "user": user, "seed": seed, "key": key}))
            .collect();
        return output::print_json(&json!({ "users": users }));
    }
    let heads = ["account", "user", "seed in", "public key"].map(|head| (head, Align::Left));
    output::print(&table(heads, rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(app: &str, out: &Path) -> Args {
        Args {
            app: app.parse().unwrap(),
            out: out.to_owned(),
            tenants: Vec::new(),
            actors: Vec::new(),
            rotate: Vec::new(),
            tls_cert: None,
            tls_key: None,
            tls_ca: None,
            all: false,
            routes: Vec::new(),
            json: false,
        }
    }

    /// A rotation turned TLS off and removed the users `all` and of actors.
    #[test]
    fn a_rotation_keeps_all_users_and_tls() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("auth");
        let conf = || std::fs::read_to_string(out.join("server/auth.conf")).unwrap();
        let first = Args {
            actors: vec!["critic=round".parse().unwrap()],
            tls_cert: Some("cert.pem".into()),
            tls_key: Some("key.pem".into()),
            all: true,
            ..args("reviews", &out)
        };
        run(&Auth::Init(first)).unwrap();
        let before = conf();
        run(&Auth::Init(args("reviews", &out))).unwrap();
        assert_eq!(conf(), before);
        let rotation = Args {
            rotate: vec!["worker".parse().unwrap()],
            ..args("reviews", &out)
        };
        run(&Auth::Init(rotation)).unwrap();
        for kept in ["# all", "# critic", "cert_file"] {
            assert!(conf().contains(kept), "{kept} is not in\n{}", conf());
        }
        assert_ne!(conf(), before);
        let second = Args {
            actors: vec!["judge=round".parse().unwrap()],
            ..args("reviews", &out)
        };
        run(&Auth::Init(second)).unwrap();
        for kept in ["# all", "# critic", "# judge", "cert_file"] {
            assert!(conf().contains(kept), "{kept} is not in\n{}", conf());
        }
    }

    /// The routes lost their authority, and were plain text.
    #[test]
    fn a_renewed_certificate_keeps_the_encryption_of_the_routes() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("auth");
        let cluster = || std::fs::read_to_string(out.join("server/cluster.conf")).unwrap();
        let first = Args {
            tls_cert: Some("cert.pem".into()),
            tls_key: Some("key.pem".into()),
            tls_ca: Some("ca.pem".into()),
            routes: vec!["n1".to_owned(), "n2".to_owned()],
            ..args("reviews", &out)
        };
        run(&Auth::Init(first)).unwrap();
        let renewal = Args {
            tls_cert: Some("renewed.pem".into()),
            tls_key: Some("key.pem".into()),
            ..args("reviews", &out)
        };
        run(&Auth::Init(renewal)).unwrap();
        for kept in ["ca.pem", "renewed.pem", "n1", "n2"] {
            assert!(cluster().contains(kept), "{kept} is not in\n{}", cluster());
        }
    }

    #[test]
    fn the_tenants_of_a_folder_stay() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("auth");
        let with = |tenants: &[&str]| Args {
            tenants: tenants.iter().map(|name| name.parse().unwrap()).collect(),
            ..args("reviews", &out)
        };
        for tenants in [&["blue"][..], &[], &["green", "blue"]] {
            run(&Auth::Init(with(tenants))).unwrap();
        }
        let conf = std::fs::read_to_string(out.join("server/auth.conf")).unwrap();
        assert_eq!(conf.matches("jetstream: enabled").count(), 2, "{conf}");
        assert!(!conf.contains("\"reviews\""), "{conf}");
        let plain = folder.path().join("plain");
        run(&Auth::Init(args("reviews", &plain))).unwrap();
        let added = Args {
            tenants: vec!["blue".parse().unwrap()],
            ..args("reviews", &plain)
        };
        let error = run(&Auth::Init(added)).unwrap_err().to_string();
        assert!(error.contains("without a tenant"), "{error}");
    }

    /// The folder became the other app's, with the same keys.
    #[test]
    fn the_folder_of_another_app_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("auth");
        run(&Auth::Init(args("reviews", &out))).unwrap();
        let error = run(&Auth::Init(args("other", &out))).unwrap_err().to_string();
        assert!(error.contains("app `reviews`, not of `other`"), "{error}");
        let conf = std::fs::read_to_string(out.join("server/auth.conf")).unwrap();
        assert!(
            conf.contains("app `reviews`") && !conf.contains("app `other`"),
            "{conf}"
        );
    }
}
