//! `bellwether`: what goes on in a fleet, from the command line.
//!
//! The commands ask the server alone, by the public API of the crate. `doctor` also sends commands
//! of its own.
//!
//! | exit code | meaning |
//! |---|---|
//! | 0 | all is well |
//! | 1 | an error, or a bad verdict of `doctor` |
//! | 2 | wrong arguments |
//! | 3 | there was nothing to end, to remove or to explain |
#![forbid(unsafe_code)]

mod address;
mod doctor;
mod fleet;
mod keys;
mod listing;
mod mark;
mod screen;
mod show;
mod signals;
mod top;

use std::{
    error::Error,
    fmt,
    io::{self, BufRead, IsTerminal, Write},
    process::ExitCode,
    time::Duration,
};

use bellwether::{
    Cache, ErrorKind, Locks, RedisBackend,
    cache::{EntryState, Explanation},
    key::Escaped,
    lock::{JobMark, ListedLock},
};
use clap::{Args, CommandFactory, Parser, Subcommand};
use serde_json::{Value, json};

use mark::Removal;

pub(crate) type Failure = Box<dyn Error + Send + Sync>;

/// The reason why arguments are wrong.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Usage {}

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
    /// The Redis server. Several, after commas, are nodes of a cluster or sentinels. A comma within
    /// a URL is written `%2C`.
    #[arg(
        long,
        global = true,
        env = "BELLWETHER_URL",
        hide_env_values = true,
        default_value = "redis://127.0.0.1:6379"
    )]
    url: Vec<String>,
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
    /// Tells what is known of a key of a cache, and of a lock and a job of this name.
    Explain {
        /// The key, or the `http://` or `https://` address of a response that an HTTP layer stores.
        key: String,
        /// The key is written as it is shown, with `\u{…}`, `\n` and `\\`.
        #[arg(long)]
        escaped: bool,
        /// The schema of the cache.
        #[arg(long, default_value_t = 0)]
        schema: u16,
    },
    /// Ends the locks of a name. Their holders are told, but may still act.
    Unlock {
        name: String,
        /// The name is written as it is shown, with `\u{…}`, `\n` and `\\`.
        #[arg(long)]
        escaped: bool,
        /// Does not ask.
        #[arg(long)]
        yes: bool,
    },
    /// Shows the mark of a job: its last tick that was begun. Earlier ticks do not run.
    Mark {
        /// The name that `once` or `every` was given, or with `once_id` the name, `:` and the id.
        name: String,
        /// Asks, and removes the mark, so that any tick may begin.
        #[arg(long)]
        remove: bool,
        /// The name is written as it is shown, with `\u{…}`, `\n` and `\\`.
        #[arg(long)]
        escaped: bool,
        /// Does not ask.
        #[arg(long, requires = "remove")]
        yes: bool,
    },
    /// Prints completions for a shell.
    Completions { shell: clap_complete::Shell },
    /// Prints a manual page, in the form that `man -l -` reads.
    Man,
    /// Removes all values of the namespace that caches with tags have stored.
    Clear {
        /// Does not ask.
        #[arg(long)]
        yes: bool,
    },
    /// Removes a value from a cache, or all values with a tag.
    Invalidate {
        /// The key, or the `http://` or `https://` address of a response that an HTTP layer stores.
        #[arg(required_unless_present = "tag")]
        key: Option<String>,
        #[arg(long, conflicts_with = "key")]
        tag: Option<String>,
        /// The key or the tag is written as it is shown, with `\u{…}`, `\n` and `\\`.
        #[arg(long)]
        escaped: bool,
        /// Exits with 3 if nothing was stored.
        #[arg(long, conflicts_with = "tag")]
        expect: bool,
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
    pub(crate) fn urls(&self) -> Result<Vec<String>, Usage> {
        address::split(&self.url)
    }

    fn backend(&self) -> Result<RedisBackend, Failure> {
        let builder = RedisBackend::builder().command_timeout(Duration::from_secs(2));
        let urls = self.urls()?;
        let builder = match (&self.master, self.cluster, urls.as_slice()) {
            (Some(name), ..) => builder.sentinels(urls, name),
            (None, true, _) => builder.cluster(urls),
            (None, false, [one]) => builder.server(one),
            (None, false, _) => {
                return Err(Usage("several URLs need `--cluster` or `--master`".into()).into());
            }
        };
        Ok(builder.build()?)
    }

    fn locks(&self) -> Result<Locks, Failure> {
        Ok(Locks::new(self.backend()?, &self.namespace))
    }

    /// Opens a cache whose values are not looked at.
    fn cache(&self, schema: u16) -> Result<Cache<Value>, Failure> {
        let builder = Cache::builder(self.backend()?, &self.namespace);
        let builder = builder.schema(schema).tags();
        Ok(builder.build()?)
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let options = match Options::try_parse() {
        Ok(options) => options,
        Err(error) => return wrong_arguments(&error),
    };
    let json = options.json;
    let exit = match run(options).await {
        Ok(exit) => exit,
        // The reader of the pipe, such as `head`, has read enough.
        Err(failure) if is_closed_pipe(&*failure) => Exit::Well,
        Err(failure) => {
            let words = in_full(&*failure);
            if json {
                // The reader may have gone.
                let _ = show::print_json(&json!({ "error": words }));
            } else {
                show::warn(&words);
            }
            if is_usage(&*failure) { Exit::Usage } else { Exit::Bad }
        }
    };
    ExitCode::from(exit as u8)
}

/// Tells what is wrong with the arguments, also a script that reads JSON.
fn wrong_arguments(error: &clap::Error) -> ExitCode {
    let is_json = error.use_stderr() && std::env::args_os().any(|argument| argument == "--json");
    if is_json {
        let words = error.to_string();
        let words = words.trim_start_matches("error: ").trim_end();
        let _ = show::print_json(&json!({ "error": words }));
    }
    let _ = error.print();
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(Exit::Usage as u8))
}

fn is_closed_pipe(failure: &(dyn Error + 'static)) -> bool {
    let error = failure.downcast_ref::<io::Error>();
    error.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Returns whether other arguments are needed, such as another namespace.
fn is_usage(failure: &(dyn Error + 'static)) -> bool {
    let kind = failure.downcast_ref::<bellwether::Error>().map(bellwether::Error::kind);
    failure.is::<Usage>() || matches!(kind, Some(ErrorKind::InvalidConfig | ErrorKind::InvalidKey))
}

/// Returns an error with its causes.
pub(crate) fn in_full(error: &(dyn Error + 'static)) -> String {
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
    let server = options.server;
    let json = options.json;
    match options.command {
        Command::Doctor { at } => {
            let url = at.map_or(server.url.clone(), |url| vec![url]);
            doctor::examine(&Server { url, ..server }, json).await
        }
        Command::Locks => listing::list(&server, json).await,
        Command::Top { seconds } => top::watch(&server, seconds, json).await,
        Command::Explain { key, escaped, schema } => {
            let key = keys::read(&key, escaped)?;
            explain(&server, &key, schema, json).await
        }
        Command::Unlock { name, escaped, yes } => {
            let name = keys::read_plain(&name, escaped)?;
            unlock(&server.locks()?, &name, yes, json).await
        }
        Command::Mark { name, remove, escaped, yes } => {
            let name = keys::read_plain(&name, escaped)?;
            let removal = Removal { is_wanted: remove, skips_question: yes };
            mark::examine(&server, &name, removal, json).await
        }
        Command::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Options::command(), "bellwether", &mut text);
            io::stdout().write_all(&text)?;
            Ok(Exit::Well)
        }
        Command::Man => {
            clap_mangen::Man::new(Options::command()).render(&mut io::stdout())?;
            Ok(Exit::Well)
        }
        Command::Clear { yes } => clear(&server, yes, json).await,
        Command::Invalidate { key, tag, escaped, expect, schema } => {
            let cache = server.cache(schema)?;
            match (key, tag) {
                (_, Some(tag)) => {
                    invalidate_tag(&cache, &keys::read_plain(&tag, escaped)?, json).await
                }
                (Some(key), None) => {
                    invalidate(&cache, &keys::read(&key, escaped)?, expect, json).await
                }
                (None, None) => Ok(Exit::Usage),
            }
        }
    }
}

async fn explain(server: &Server, key: &str, schema: u16, json: bool) -> Result<Exit, Failure> {
    let explained = server.cache(schema)?.explain(key).await?;
    let locks = server.locks()?.explain(key).await?;
    // The rest is shown also if the mark cannot be read.
    let mark = mark::job(server, key)?.mark().await;
    let is_nothing = is_nothing(&explained) && locks.is_empty() && matches!(mark, Ok(None));
    if json {
        let mut fields = show::explanation_json(key, &explained);
        fields["locks"] = show::locks_json(&locks);
        fields["mark"] = mark.map_or(Value::Null, mark::as_json);
        show::print_json(&fields)?;
    } else {
        show::print(&show::explanation(&server.namespace, key, &explained))?;
        // A name alone does not say whether a key or a lock is meant.
        for lock in &locks {
            show::print(&format!("the lock {lock}"))?;
        }
        show::print(&mark_words(key, &mark))?;
        if is_nothing {
            show::print(&keys::why_nothing(server, key).await)?;
        }
    }
    Ok(if is_nothing { Exit::Nothing } else { Exit::Well })
}

/// Returns the words for the mark of the job of a name, which may not be known.
fn mark_words(name: &str, mark: &Result<Option<JobMark>, bellwether::Error>) -> String {
    match mark {
        Ok(Some(mark)) => format!("the job {}: {}", Escaped(name), mark::words(mark)),
        Ok(None) => "no job of this name has a mark".to_owned(),
        Err(error) => {
            let why = in_full(error);
            format!("whether a job of this name has a mark is not known: {}", show::in_line(&why))
        }
    }
}

fn is_nothing(explained: &Explanation) -> bool {
    let Explanation { state, load, .. } = explained;
    *state == EntryState::Missing && load.holders == 0 && load.failed.is_none()
}

async fn invalidate(
    cache: &Cache<Value>,
    key: &str,
    expect: bool,
    json: bool,
) -> Result<Exit, Failure> {
    // If this fails, the value is still removed.
    let before = cache.explain(key).await.ok();
    cache.invalidate(key).await?;
    let was_stored = before.as_ref().map(|before| before.state != EntryState::Missing);
    let was_loaded = before.as_ref().map(|before| before.load.holders > 0);
    if json {
        show::print_json(&json!({ "key": key, "stored": was_stored, "load": was_loaded }))?;
    } else {
        show::print(match (was_stored, was_loaded) {
            (Some(false), Some(true)) => "nothing was stored; a load under way was ended",
            (Some(false), _) => "nothing was stored",
            _ => "invalidated: the next caller loads",
        })?;
    }
    Ok(if expect && was_stored == Some(false) { Exit::Nothing } else { Exit::Well })
}

async fn invalidate_tag(cache: &Cache<Value>, tag: &str, json: bool) -> Result<Exit, Failure> {
    cache.invalidate_tag(tag).await?;
    if json {
        show::print_json(&json!({ "tag": tag }))?;
    } else {
        show::print("invalidated: the next caller of each value with the tag loads")?;
    }
    Ok(Exit::Well)
}

/// Ends all values of the namespace, after a question.
async fn clear(server: &Server, yes: bool, json: bool) -> Result<Exit, Failure> {
    // A cache without tags reads no tag numbers, so its values would stay.
    if keys::has_tags(server).await == Some(false) {
        let why = "no cache with tags has stored anything in this namespace; only values of a \
                   cache with tags can be cleared: invalidate each key, or change the namespace";
        if json {
            show::print_json(&json!({ "error": why }))?;
        } else {
            show::warn(why);
        }
        return Ok(Exit::Nothing);
    }
    if !yes {
        let namespace = &server.namespace;
        let question = format!("All values of {namespace} that have tags on are loaded anew.");
        ask(&question, &format!("Clear {namespace}"))?;
    }
    server.cache(0)?.clear().await?;
    if json {
        show::print_json(&json!({ "cleared": server.namespace }))?;
    } else {
        show::print(
            "cleared: the next caller of each value loads; values of caches without tags stay",
        )?;
    }
    Ok(Exit::Well)
}

/// Ends the locks of a name, after a question.
async fn unlock(locks: &Locks, name: &str, yes: bool, json: bool) -> Result<Exit, Failure> {
    let held = locks.explain(name).await?;
    let shown = Escaped(name);
    if !yes {
        confirm(name, &held)?;
    }
    let mut ended = Vec::with_capacity(held.len());
    for lock in &held {
        if locks.end(lock).await? {
            ended.push(lock.clone());
        } else {
            // A holder that came while the user read the question keeps the lock.
            let words = "has another holder by now, which keeps it, or it is free";
            show::warn(&format!("{shown} {words}"));
        }
    }
    if json {
        show::print_json(&show::locks_json(&ended))?;
    } else {
        for lock in &ended {
            show::print(&format!("ended: {lock}"))?;
        }
    }
    if held.is_empty() && !json {
        show::warn(&format!("{shown} is not held in this namespace"));
    }
    let all_ended = !held.is_empty() && ended.len() == held.len();
    Ok(if all_ended { Exit::Well } else { Exit::Nothing })
}

/// Asks the user, where there is something to end.
fn confirm(name: &str, held: &[ListedLock]) -> Result<(), Failure> {
    if held.is_empty() {
        return Ok(());
    }
    let shown = Escaped(name);
    let mut question = String::new();
    for lock in held {
        question += &format!("{lock}\n");
    }
    question += "Its holder is told, but may still act.";
    ask(&question, &format!("Unlock {shown}"))
}

/// Asks whether to do something. The question is no part of the output.
pub(crate) fn ask(question: &str, act: &str) -> Result<(), Failure> {
    if !io::stdin().is_terminal() {
        let why = format!("nobody can be asked here; give `--yes`: {act}?");
        return Err(Usage(why).into());
    }
    let mut asked = io::stderr();
    write!(asked, "{question} {act}? [y/N] ")?;
    asked.flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Usage("nothing was changed".to_owned()).into()),
    }
}
