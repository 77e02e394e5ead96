//! A list of products, each cached on its own, and one SQL query for those that are missing.
//!
//! ```text
//! cargo run --example many
//! ```

mod batcher;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use bellwether::{BoxError, Cache, Error, MemoryBackend, cache::Batch};
use futures_util::future::try_join_all;
use rusqlite::{Connection, params_from_iter};
use serde::{Deserialize, Serialize};
use tokio::task::spawn_blocking;

use self::batcher::Batcher;

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Product {
    name: String,
    price: i64,
}

/// The database, which counts its queries.
#[derive(Clone)]
struct Shop {
    database: Arc<Mutex<Connection>>,
    queries: Arc<AtomicUsize>,
}

impl Shop {
    fn open() -> Result<Self, BoxError> {
        let database = Connection::open_in_memory()?;
        database.execute_batch(
            "CREATE TABLE products (id INTEGER PRIMARY KEY, name TEXT, price INTEGER);
             WITH RECURSIVE ids(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM ids LIMIT 150)
             INSERT INTO products SELECT id, 'bell no. ' || id, 100 * id FROM ids",
        )?;
        Ok(Self { database: Arc::new(Mutex::new(database)), queries: Arc::default() })
    }

    /// Returns the products with these ids by one query.
    async fn products(self, ids: Vec<i64>) -> Result<HashMap<i64, Product>, BoxError> {
        self.queries.fetch_add(1, Ordering::Relaxed);
        spawn_blocking(move || {
            let database = self.database.lock().map_err(|_| "another query panicked")?;
            let marks = vec!["?"; ids.len()].join(", ");
            let query = format!("SELECT id, name, price FROM products WHERE id IN ({marks})");
            let mut query = database.prepare(&query)?;
            let rows = query.query_map(params_from_iter(ids), |row| {
                Ok((row.get(0)?, Product { name: row.get(1)?, price: row.get(2)? }))
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
        .await?
    }

    /// Loads what is missing. `None` is stored for an id that has no row.
    async fn load(self, batch: Batch<i64, Option<Product>>) -> Result<Rows, BoxError> {
        let mut products = self.products(batch.ids().to_vec()).await?;
        let mut answers = Vec::new();
        for id in batch.ids() {
            answers.push((*id, products.remove(id)));
        }
        Ok(answers)
    }
}

type Rows = Vec<(i64, Option<Product>)>;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let shop = Shop::open()?;
    // With `RedisBackend::open(url)?` in its place, all processes form one fleet.
    let cache = Cache::builder(MemoryBackend::new(), "shop").build()?;

    one_query_for_a_page(&cache, &shop).await?;
    one_query_for_a_tick(cache, &shop).await
}

fn key(id: &i64) -> String {
    format!("product:{id}")
}

/// Reads a page of a hundred products, and then one that overlaps with it.
async fn one_query_for_a_page(cache: &Cache<Option<Product>>, shop: &Shop) -> Result<(), BoxError> {
    for page in [1..=100, 51..=150] {
        let load = {
            let shop = shop.clone();
            move |batch| shop.clone().load(batch)
        };
        let products = cache.get_or_load_many(page.clone(), key, load).await?;
        let products = products.into_iter().collect::<Result<Vec<_>, Error>>()?;
        let total: i64 =
            products.iter().flat_map(|product| &product.value).map(|product| product.price).sum();
        println!("products {page:?} cost {total} in all");
    }
    let queries = shop.queries.swap(0, Ordering::Relaxed);
    println!("{queries} queries loaded 150 products: 100 for the first page, 50 for the second\n");
    Ok(())
}

/// Asks for single products, as the fields of a GraphQL answer do.
async fn one_query_for_a_tick(cache: Cache<Option<Product>>, shop: &Shop) -> Result<(), BoxError> {
    for id in 1..=150 {
        cache.invalidate(key(&id)).await?;
    }
    let load = {
        let shop = shop.clone();
        move |batch| shop.clone().load(batch)
    };
    let batcher = Batcher::new(cache, key, load);
    let products = try_join_all([7, 42, 7, 999].map(|id| batcher.load(id))).await?;
    for product in products {
        println!("{}", product.map_or("no such product".to_owned(), |product| product.name));
    }
    let queries = shop.queries.load(Ordering::Relaxed);
    println!("{queries} query for 4 single calls of one tick");
    Ok(())
}
