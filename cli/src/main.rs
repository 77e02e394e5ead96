//! `bellwether`: what goes on in a fleet, from the command line.
//!
//! It asks the server alone, by the public API of the crate. `doctor` asks the server for more.
//!
//! It exits with 0 if all is well, with 1 after an error or a bad verdict of `doctor`, with 2 for
//! wrong arguments, and with 3 if there was nothing to end.
#![forbid(unsafe_code)]

mod doctor;
mod show;
mod top;

use std::{
    error::Error,
    io::{self, BufRead, IsTerminal, Write},
    process::ExitCode,
    time::Duration,
};

use bellwether::{Cache, Locks, RedisBackend, lock::ListedLock};
use clap::{Args, Parser, Subcommand};
use serde_json::{Value, json};

pub(crate) type Failure = Box<dyn Error + Send + Sync>;

/// Looks into the caches and locks of a fleet.
#[derive(Parser)]
#[command(name = "bellwether", version)]
struct Options {
    #[command(flatten)]
    server: Server,
    /// Prints JSON, for scripts.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

/// Where the data is.
#[derive(Args, Clone)]
pub(crate) struct Server {
    /// The Redis server. Several, after commas, are nodes of a cluster or sentinels.
    #[arg(
        long,
        global = true,
        env = "BELLWETHER_URL",
        hide_env_values = true,
        value_delimiter = ',',
        default_value = "redis://127.0.0.1:6379"
    )]
    pub(crate) url: Vec<String>,
    /// The namespace of the caches and locks.
    #[arg(long, global = true, env = "BELLWETHER_NAMESPACE", default_value = "bellwether")]
    pub(crate) namespace: String,
    /// The URLs are nodes of a cluster.
    #[arg(long, global = true, conflicts_with = "master")]
    pub(crate) cluster: bool,
    /// The URLs are sentinels, which watch the master of this name.
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) master: Option<String>,
}

#[derive(Subcommand)]
enum Command {
    /// Checks a server: what is wrong with it, and what to do.
    Doctor {
        /// The server, in place of `--url`.
        #[arg(value_name = "URL")]
        at: Option<String>,
    },
    /// Lists the locks that are held or waited for.
    Locks,
    /// Shows the busiest keys and locks, and the loads, each second.
    Top {
        /// Ends after so many seconds, in place of Ctrl-C.
        #[arg(long)]
        seconds: Option<u64>,
    },
    /// Tells what is known of a key of a cache.
    Explain {
        key: String,
        /// The schema of the cache.
        #[arg(long, default_value_t = 0)]
        schema: u16,
    },
    /// Ends the locks of a name. Their holders are told, but may still act.
    Unlock {
        name: String,
        /// Does not ask.
        #[arg(long)]
        yes: bool,
    },
    /// Removes a value from a cache, or all values with a tag.
    Invalidate {
        #[arg(required_unless_present = "tag")]
        key: Option<String>,
        #[arg(long, conflicts_with = "key")]
        tag: Option<String>,
        /// The schema of the cache.
        #[arg(long, default_value_t = 0)]
        schema: u16,
    },
}

/// How a command ends.
#[derive(Clone, Copy)]
pub(crate) enum Exit {
    Well = 0,
    Bad = 1,
    Usage = 2,
    Nothing = 3,
}

impl Server {
    fn backend(&self) -> Result<RedisBackend, Failure> {
        let builder = RedisBackend::builder().command_timeout(Duration::from_secs(2));
        let urls = self.url.clone();
        let builder = match (&self.master, self.cluster, urls.as_slice()) {
            (Some(name), ..) => builder.sentinels(urls, name),
            (None, true, _) => builder.cluster(urls),
            (None, false, [one]) => builder.server(one),
            (None, false, _) => return Err("several URLs need `--cluster` or `--master`".into()),
        };
        Ok(builder.build()?)
    }

    fn locks(&self) -> Result<Locks, Failure> {
        Ok(Locks::new(self.backend()?, &self.namespace))
    }

    /// Opens a cache whose values are not looked at.
    fn cache(&self, schema: u16) -> Result<Cache<Value>, Failure> {
        let builder = Cache::builder(self.backend()?, &self.namespace);
        Ok(builder.schema(schema).tags().build()?)
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let options = Options::parse();
    let json = options.json;
    let exit = run(options).await.unwrap_or_else(|failure| {
        let words = in_full(&*failure);
        match json {
            true => show::print(&json!({ "error": words }).to_string()),
            false => eprintln!("bellwether: {words}"),
        }
        Exit::Bad
    });
    ExitCode::from(exit as u8)
}

/// Returns an error with its causes.
fn in_full(error: &(dyn Error + 'static)) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !words.contains(&text) {
            words = format!("{words}: {text}");
        }
        cause = error.source();
    }
    words
}

async fn run(options: Options) -> Result<Exit, Failure> {
    let (server, json) = (options.server, options.json);
    match options.command {
        Command::Doctor { at } => {
            let url = at.map_or(server.url.clone(), |url| vec![url]);
            doctor::examine(&Server { url, ..server }, json).await
        }
        Command::Locks => {
            let locks = server.locks()?.list().await?;
            show::print(&match json {
                true => show::locks_json(&locks),
                false => show::locks(&server.namespace, &locks),
            });
            Ok(Exit::Well)
        }
        Command::Top { seconds } => top::watch(&server, seconds, json).await,
        Command::Explain { key, schema } => {
            let explained = server.cache(schema)?.explain(&key).await?;
            if json {
                show::print(&show::explanation_json(&key, &explained));
                return Ok(Exit::Well);
            }
            show::print(&show::explanation(&server.namespace, &key, &explained));
            // A name alone does not say whether a key or a lock is meant.
            for lock in server.locks()?.explain(&key).await? {
                show::print(&format!("the lock {lock}"));
            }
            Ok(Exit::Well)
        }
        Command::Unlock { name, yes } => unlock(&server.locks()?, &name, yes, json).await,
        Command::Invalidate { key, tag, schema } => {
            let cache = server.cache(schema)?;
            match (&key, &tag) {
                (_, Some(tag)) => cache.invalidate_tag(tag).await?,
                (Some(key), None) => cache.invalidate(key).await.map(drop)?,
                (None, None) => return Ok(Exit::Usage),
            }
            show::print(&match json {
                true => json!({ "key": key, "tag": tag }).to_string(),
                false => "invalidated: the next caller loads".to_owned(),
            });
            Ok(Exit::Well)
        }
    }
}

/// Ends the locks of a name, after a question.
async fn unlock(locks: &Locks, name: &str, yes: bool, json: bool) -> Result<Exit, Failure> {
    let held = locks.explain(name).await?;
    if !yes && !may_unlock(name, &held)? {
        return Ok(Exit::Usage);
    }
    let mut ended = Vec::with_capacity(held.len());
    for lock in &held {
        match locks.end(lock).await? {
            true => ended.push(lock.clone()),
            // A holder that came while the user read the question keeps the lock.
            false => eprintln!(
                "bellwether: {name} has another holder by now, which keeps it, or it is free"
            ),
        }
    }
    match json {
        true => show::print(&show::locks_json(&ended)),
        false => ended.iter().for_each(|lock| show::print(&format!("ended: {lock}"))),
    }
    if held.is_empty() && !json {
        eprintln!("bellwether: {name} is not held in this namespace");
    }
    let all_ended = !held.is_empty() && ended.len() == held.len();
    Ok(if all_ended { Exit::Well } else { Exit::Nothing })
}

/// Asks the user, where there is something to end.
fn may_unlock(name: &str, held: &[ListedLock]) -> Result<bool, Failure> {
    if held.is_empty() {
        return Ok(true);
    }
    if !io::stdin().is_terminal() {
        eprintln!("bellwether: nobody can be asked here; give `--yes` to unlock {name}");
        return Ok(false);
    }
    for lock in held {
        show::print(&lock.to_string());
    }
    print!("Its holder is told, but may still act. Unlock {name}? [y/N] ");
    io::stdout().flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
