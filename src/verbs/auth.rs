//! `kaskade auth init`: users of the broker and their permissions.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::ensure;
use kaskade_actors::ops::permissions::Role;
use kaskade_actors::subjects::App;
use kaskade_app::config::scalar::Token;
use kaskade_app::keys::{self, Account, Tls, User};
use kaskade_app::report::progress::say;
use kaskade_app::report::table::{Align, table};
use kaskade_app::report::write_file;
use serde_json::json;

use crate::output;

/// Creates keys and permissions for the broker.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Auth {
    /// Creates an nkey seed per role, and the nats-server configuration with the permissions of each role.
    ///
    /// A second run keeps existing seeds and writes the configuration again.
    Init(Args),
}

/// Users, permissions and TLS of one app.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of the app.
    #[arg(value_name = "APP")]
    app: Token,
    /// Folder for seeds and configuration; it is created if it does not exist.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Account with its own users, in a folder of that name; may be repeated [default: one account with the app's name].
    #[arg(long = "tenant", value_name = "NAME")]
    tenants: Vec<Token>,
    /// User for a custom actor that serves only these stages; may be repeated.
    #[arg(long = "actor", value_name = "NAME=STAGE[,STAGE...]")]
    actors: Vec<Actor>,
    /// Replace the seed of this user; the old one stays valid until `USER/nkey.previous` is removed and the command runs again.
    #[arg(long, value_name = "USER")]
    rotate: Vec<Token>,
    /// Certificate of the server, as a path on its machine.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Key of that certificate.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Certificate authority that signed it, for the routes of a cluster.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_ca: Option<PathBuf>,
    /// Also create a user `all`, for processes that run the whole app (`serve --role all`).
    #[arg(long)]
    all: bool,
    /// Host name of a server of a cluster; may be repeated.
    #[arg(long = "route", value_name = "HOST")]
    routes: Vec<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Folder with the configuration of the servers.
const SERVER: &str = "server";

/// User of a custom actor.
#[derive(Debug, Clone)]
struct Actor {
    name: Token,
    stages: Vec<Token>,
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

/// Writes seeds and configuration.
pub(crate) fn run(Auth::Init(args): &Auth) -> anyhow::Result<()> {
    let app = App::new(args.app.as_str())?;
    let users = users(args)?;
    for user in &args.rotate {
        ensure!(
            users.iter().any(|(name, _)| name == user.as_str()),
            "there is no user `{user}` to rotate; there are {:?}",
            users.iter().map(|(name, _)| name).collect::<Vec<_>>()
        );
    }
    let accounts = if args.tenants.is_empty() {
        vec![account(args, args.app.as_str(), &args.out, &users)?]
    } else {
        let tenant = |name: &Token| account(args, name.as_str(), &args.out.join(name.as_str()), &users);
        ensure!(
            args.tenants.iter().all(|name| name.as_str() != SERVER),
            "`{SERVER}` is taken; give the tenant another name"
        );
        args.tenants.iter().map(tenant).collect::<Result<_, _>>()?
    };
    let tls = args.tls_cert.clone().zip(args.tls_key.clone());
    let tls = tls.map(|(cert, key)| Tls {
        cert,
        key,
        ca: args.tls_ca.clone(),
    });
    let rules = keys::configuration(&app, &accounts, tls.as_ref())?;
    let folder = args.out.join(SERVER);
    write_file(&folder.join("auth.conf"), &rules)?;
    if !args.routes.is_empty() {
        keys::cluster(&folder, &args.routes)?;
    }
    let server = folder.join("nats-server.conf");
    write_file(&server, &whole(&folder)?)?;
    print(args, &accounts)?;
    say(&format!(
        "start the broker by `nats-server --config {}`",
        server.display()
    ));
    Ok(())
}

/// Returns name and role of the users of an account.
fn users(args: &Args) -> anyhow::Result<Vec<(String, Role)>> {
    let mut users = keys::roles();
    if args.all {
        users.push(("all".to_owned(), Role::All));
    }
    for Actor { name, stages } in &args.actors {
        ensure!(
            name.as_str() != SERVER && users.iter().all(|(known, _)| known != name.as_str()),
            "`{name}` is taken; give the actor another name"
        );
        let role = Role::Actor {
            name: name.to_string(),
            stages: stages.iter().map(Token::to_string).collect(),
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
fn print(args: &Args, accounts: &[Account]) -> anyhow::Result<()> {
    let folder = |account: &Account| {
        if args.tenants.is_empty() {
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
        return output::print_json(&users);
    }
    let heads = ["account", "user", "seed in", "public key"].map(|head| (head, Align::Left));
    output::print(&table(heads, rows))
}
