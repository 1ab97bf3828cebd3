//! `kaskade auth init`: who may connect to the broker, and what they may do there.

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

/// Authentication by nkeys, and permissions by role.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Auth {
    /// Makes a seed per role, and the configuration of a nats-server that lets each do its part of the app and nothing else.
    ///
    /// Run again, it keeps the seeds that are there and writes the configuration anew.
    Init(Args),
}

/// What is wanted.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of the app.
    #[arg(long, value_name = "NAME")]
    app: Token,
    /// Folder for seeds and configuration; made if it is not there.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Another account with users of its own, in a folder of that name; repeat it. One account of the app's name without it.
    #[arg(long = "tenant", value_name = "NAME")]
    tenants: Vec<Token>,
    /// A user for an actor of one's own, who serves these stages alone; repeat it.
    #[arg(long = "actor", value_name = "NAME=STAGE[,STAGE...]")]
    actors: Vec<Actor>,
    /// Replace the seed of this user; the old one stays good until its file, `USER/nkey.previous`, is removed and this is run again.
    #[arg(long, value_name = "USER")]
    rotate: Vec<Token>,
    /// The server's certificate, as a path on its machine.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The key of that certificate.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Who signed it, for servers of a cluster to know each other.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_ca: Option<PathBuf>,
    /// Also a user `all`, for processes that are the whole app (`serve --role all`).
    #[arg(long)]
    all: bool,
    /// A server of a cluster, by the host that the others reach it at; repeat it for each.
    #[arg(long = "route", value_name = "HOST")]
    routes: Vec<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Name of the folder with what servers read.
const SERVER: &str = "server";

/// A user of one's own.
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
            .ok_or_else(|| format!("`{text}` names no stage; write NAME=STAGE, such as `mine=small`"))?;
        Ok(Self {
            name: name.parse()?,
            stages: stages.split(',').map(str::parse).collect::<Result<_, _>>()?,
        })
    }
}

/// Makes what was asked for.
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
    tell(args, &accounts)?;
    say(&format!(
        "start the broker by `nats-server --config {}`",
        server.display()
    ));
    Ok(())
}

/// Name and role of everybody in an account.
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

/// A whole configuration, for a single server.
fn whole(out: &Path) -> anyhow::Result<String> {
    let store = std::path::absolute(out)?.join("jetstream");
    Ok(format!(
        "# A single nats-server for the app: nats-server --config {}\n# For one of a cluster, add its `server_name` and `include \"cluster.conf\"`.\nlisten: \"0.0.0.0:4222\"\njetstream {{\n  store_dir: {:?}\n}}\ninclude \"auth.conf\"\n",
        out.join("nats-server.conf").display(),
        store.display().to_string()
    ))
}

/// Who is who. Public keys are public; of seeds, only where they are.
fn tell(args: &Args, accounts: &[Account]) -> anyhow::Result<()> {
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
